//! What this binary is called: in `playhouse --version`, in status and metrics, and between the processes of a site.

use std::hint::black_box;

/// The version, or what `PLAYHOUSE_BUILD` was set to when the binary was compiled, so that two builds of one version can
/// be told apart (`0.1.0+git.1f3a`).
///
/// It is read from where anybody finds it: `strings playhouse | grep 'playhouse build'`.
pub(super) fn build() -> &'static str {
    // Read, and not computed: what stands in the file is what is said.
    let name = &black_box(&LABEL)[PREFIX.len()..];
    let length = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    std::str::from_utf8(&name[..length]).unwrap_or(NAME)
}

const NAME: &str = match option_env!("PLAYHOUSE_BUILD") {
    Some(name) => name,
    None => env!("CARGO_PKG_VERSION"),
};
const PREFIX: &[u8] = b"playhouse build ";

static LABEL: [u8; 96] = label();

const fn label() -> [u8; 96] {
    let mut label = [0; 96];
    let name = NAME.as_bytes();
    assert!(!name.is_empty() && PREFIX.len() + name.len() < label.len(), "PLAYHOUSE_BUILD is too long");
    let mut at = 0;
    while at < PREFIX.len() {
        label[at] = PREFIX[at];
        at += 1;
    }
    while at < PREFIX.len() + name.len() {
        label[at] = name[at - PREFIX.len()];
        at += 1;
    }
    label
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_label_says_the_build() {
        assert_eq!(build(), NAME);
        assert!(!build().is_empty() && build().is_ascii());
    }
}
