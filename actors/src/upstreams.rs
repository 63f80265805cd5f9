//! The upstreams' supervisors: for each upstream its pool actor and, where the site asks for it, its health checker.

use std::sync::Arc;
use std::time::Duration;

use playhouse_serve::upstream::Upstream;

use crate::health::HealthChecker;
use crate::pool::Pool;
use crate::supervision::{ChildSpec, Intensity, Strategy, Supervisor};

/// The supervisor of all upstreams of the site.
pub fn supervisor(specs: impl Fn() -> Vec<ChildSpec> + Send + Sync + 'static) -> Supervisor {
    Supervisor::new(Strategy::OneForOne, Intensity::default(), specs)
}

/// The child for one upstream: a supervisor of its own.
pub fn spec(upstream: Arc<Upstream>) -> ChildSpec {
    let name = upstream.name().to_string();
    ChildSpec::new(name, move || {
        let upstream = upstream.clone();
        Supervisor::new(Strategy::OneForOne, Intensity::default(), move || {
            let pool = upstream.clone();
            let mut children =
                vec![ChildSpec::new("pool", move || Pool::new(pool.clone())).stall_after(STALL)];
            // The processes of an app are checked by who runs them.
            if upstream.snapshot().settings.health.is_some() && !upstream.name().starts_with(APP) {
                let checked = upstream.clone();
                let checker = ChildSpec::new("health", move || HealthChecker::new(checked.clone()));
                children.push(checker.stall_after(STALL));
            }
            children
        })
    })
    .stall_after(STALL)
}

/// Begins the name of an app's upstream, and of no other.
const APP: &str = "app:";
const STALL: Duration = Duration::from_secs(2);
