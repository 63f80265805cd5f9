//! Metrics of a site: its own recorder, handles made when a route or upstream is built.
/// A site's recorder.
#[derive(Debug)]
pub struct Metrics;
/// The handles of one route, a set per listener.
#[derive(Debug)]
pub struct RouteMetrics;
/// The handles of one upstream server.
#[derive(Debug)]
pub struct ServerMetrics;
