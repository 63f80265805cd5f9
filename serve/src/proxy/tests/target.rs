//! What is decided before a server is asked.

use super::*;

#[test]
fn a_prefix_is_taken_off_by_its_segments() {
    let upstream = Upstream::new(&settings_of(&["127.0.0.1:1".parse().unwrap()]), &Metrics::default());
    let config = model::Proxy { upstream: "api".into(), strip_prefix: true, preserve_host: true };
    let stripped = |path: PathPattern, sent: &'static str| {
        let target = ProxyTarget::new(&config, &path, upstream.clone());
        target.path(&PathAndQuery::from_static(sent)).to_string()
    };
    let prefix = |path: &str| PathPattern::Prefix(path.into());
    assert_eq!(stripped(prefix("/api/v1/"), "/api/v1/a/b?q=1"), "/a/b?q=1");
    assert_eq!(stripped(prefix("/api/"), "/api/?q"), "/?q");
    assert_eq!(stripped(prefix("/a;b/"), "/a%3Bb/%2Fx"), "/%2Fx");
    assert_eq!(stripped(prefix("/"), "/x"), "/x");
    assert_eq!(stripped(PathPattern::Exact("/ws".into()), "/ws?token=1"), "/?token=1");
}

#[tokio::test]
async fn an_options_that_may_go_no_further_is_answered_here() {
    let target = target(&settings_of(&["127.0.0.1:1".parse().unwrap()]));
    let exchange = request(Method::OPTIONS, &[("max-forwards", "0")], RequestBody::Empty);
    assert_eq!(call(&target, exchange).await.0.status, 204);
    let (answer, _) = call(&target, request(Method::TRACE, &[], RequestBody::Empty)).await;
    assert_eq!(answer.status, 405);
}
