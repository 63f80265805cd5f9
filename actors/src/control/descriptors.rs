//! How many descriptors may be open: here as many as allowed, and for what is started as many as it would have without us.

use std::process::Command;
use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit to the hard one, and remembers what it was. The soft limit is what a shell or systemd gives to
/// programs that use select(2), 1024 as a rule; a connection takes a descriptor, and a proxied one two. The hard limit is the
/// operator's word.
pub fn raise_descriptor_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    let told = || std::env::var(VARIABLE).ok()?.parse().ok();
    let found = FOUND.get_or_init(|| told().map(Some).unwrap_or(limit.current));
    tracing::trace!(?found, "the limit of open descriptors is raised");
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "the limit of open descriptors was not raised");
    }
}

/// The limit for programs of others, where it differs from what they would inherit.
pub fn limit_as_found() -> Option<Rlimit> {
    let now = getrlimit(Resource::Nofile);
    // `None` is without a limit.
    let current = FOUND.get()?.map(|found| now.maximum.map_or(found, |maximum| found.min(maximum)));
    (current != now.current).then_some(Rlimit { current, ..now })
}

/// Tells a process of ours that is about to be started what this one was started with.
pub fn tell_descriptor_limit(command: &mut Command) {
    if let Some(Some(found)) = FOUND.get() {
        command.env(VARIABLE, found.to_string());
    }
}

/// The soft limit that this process, or the first of ours before it, was started with; unset where it was not raised.
static FOUND: OnceLock<Option<u64>> = OnceLock::new();

/// Holds it in the environment of processes of ours.
pub(crate) const VARIABLE: &str = "PLAYHOUSE_OPEN_FILES";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_descriptors_as_allowed_may_be_open_and_others_get_what_was_found() {
        let found = getrlimit(Resource::Nofile);
        raise_descriptor_limit();
        raise_descriptor_limit();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
        let mut command = Command::new("true");
        tell_descriptor_limit(&mut command);
        let told = command.get_envs().next().and_then(|(_, value)| value?.to_str()?.parse().ok());
        assert_eq!(told, found.current);
        match limit_as_found() {
            Some(limit) => assert_eq!(limit, found),
            None => assert_eq!(found.current, found.maximum),
        }
    }
}
