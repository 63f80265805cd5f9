//! Where the same site is offered over HTTP/3: the `Alt-Svc` field (RFC 7838).

use arc_swap::ArcSwapOption;
use http::header::ALT_SVC;
use http::{HeaderMap, HeaderValue};

/// What the answers of a listener say of its HTTP/3. It changes while connections last: by a reload, and when the site
/// drains.
#[derive(Debug, Default)]
pub struct Alternative(ArcSwapOption<HeaderValue>);

impl Alternative {
    /// HTTP/3 is on this port, of the same host.
    pub fn set(&self, port: u16) {
        let value = HeaderValue::try_from(format!("h3=\":{port}\"; ma={MAX_AGE}"));
        self.0.store(value.ok().map(Into::into));
    }

    /// It is not, from now on. Clients that have heard of it find out when they try.
    pub fn clear(&self) {
        self.0.store(None);
    }

    /// Says it in an answer, in place of what stands there: a server behind us cannot speak for this listener.
    pub fn advertise(&self, headers: &mut HeaderMap) {
        if let Some(value) = &*self.0.load() {
            headers.insert(ALT_SVC, (**value).clone());
        }
    }
}

/// For how many seconds clients may remember it: a day. What they remember longer than it is true costs them a try.
const MAX_AGE: u32 = 86_400;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_as_long_as_it_is_so() {
        let alternative = Alternative::default();
        let mut headers = HeaderMap::new();
        alternative.advertise(&mut headers);
        assert!(headers.is_empty());
        alternative.set(8443);
        headers.append(ALT_SVC, HeaderValue::from_static("h3=\":1\""));
        alternative.advertise(&mut headers);
        assert_eq!(headers.get_all(ALT_SVC).iter().collect::<Vec<_>>(), ["h3=\":8443\"; ma=86400"]);
        alternative.clear();
        headers.clear();
        alternative.advertise(&mut headers);
        assert!(headers.is_empty());
    }
}
