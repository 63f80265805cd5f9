//! Apps whose processes another process runs: an instance's side of what the controller says.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use playhouse_config::model::Address;
use playhouse_protocol::control::{AppLoad, AppServer, AppServerLoad, AppState, AppsLoad, AppsState};
use playhouse_serve::Site;
use playhouse_serve::apps::{App, Expected};
use playhouse_serve::upstream::Server;

use super::record;

/// What the controller has said last, and the processes as requests see them. A table: it outlives the actor that hears.
#[derive(Debug, Default)]
pub struct Remote(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    last: AppsState,
    /// By app: those that requests go to, and those that have requests still.
    servers: HashMap<String, Vec<Known>>,
}

#[derive(Debug)]
struct Known {
    place: u32,
    pid: u32,
    started: u64,
    server: Arc<Server>,
}

impl Known {
    fn is(&self, said: &AppServer) -> bool {
        (self.place, self.pid, self.started) == (said.place, said.pid, said.started)
    }
}

impl Remote {
    /// Sends requests where the controller says.
    pub fn apply(&self, state: AppsState, site: &Site) {
        let mut told = self.0.lock();
        told.last = state;
        told.put_into_force(site);
    }

    /// The same again, for apps that have come with a configuration.
    pub fn apply_again(&self, site: &Site) {
        self.0.lock().put_into_force(site);
    }

    /// What there is of the apps here; `None` before anything was said.
    pub fn load(&self, site: &Site) -> Option<AppsLoad> {
        let mut told = self.0.lock();
        if told.last.generation == 0 {
            return None;
        }
        let generation = told.last.generation;
        let apps = site.apps.all();
        for (name, servers) in &mut told.servers {
            let serving = apps.iter().find(|app| **app.name() == **name).map(|app| app.upstream().snapshot());
            servers.retain(|known| {
                let serves = |snapshot: &Arc<playhouse_serve::upstream::Snapshot>| {
                    snapshot.all.iter().any(|member| Arc::ptr_eq(&member.server, &known.server))
                };
                known.server.in_flight() > 0 || serving.as_ref().is_some_and(serves)
            });
        }
        let load = |app: &Arc<App>| AppLoad {
            name: app.name().to_string(),
            waiting: app.waiting() as u64,
            servers: told.servers.get(&**app.name()).into_iter().flatten().map(Known::load).collect(),
        };
        let mut loads: Vec<AppLoad> = apps.iter().map(load).collect();
        // Those of apps that a reload has taken out may have requests still.
        for (name, servers) in &told.servers {
            if !servers.is_empty() && !loads.iter().any(|load| load.name == *name) {
                let servers = servers.iter().map(Known::load).collect();
                loads.push(AppLoad { name: name.clone(), waiting: 0, servers });
            }
        }
        loads.sort_by(|one, other| one.name.cmp(&other.name));
        Some(AppsLoad { generation, apps: loads })
    }
}

impl Known {
    fn load(&self) -> AppServerLoad {
        AppServerLoad {
            place: self.place,
            pid: self.pid,
            in_flight: self.server.in_flight() as u64,
            requests: self.server.requests(),
        }
    }
}

impl Told {
    fn put_into_force(&mut self, site: &Site) {
        for app in site.apps.all() {
            let nothing = AppState { expected: true, ..AppState::default() };
            let said = self.last.apps.iter().find(|said| said.name == **app.name()).unwrap_or(&nothing);
            let known = self.servers.entry(app.name().to_string()).or_default();
            let mut serving = Vec::new();
            for said in said.servers.iter().filter(|said| is_possible(said)) {
                let server = match known.iter().find(|known| known.is(said)) {
                    Some(known) => known.server.clone(),
                    None => {
                        let server = start(&app, said, site);
                        known.push(Known {
                            place: said.place,
                            pid: said.pid,
                            started: said.started,
                            server: server.clone(),
                        });
                        server
                    }
                };
                server.is_told(said.healthy);
                serving.push(server);
            }
            app.serve_by(&serving);
            app.expect(if said.expected { Expected::Soon } else { Expected::Nothing });
        }
    }
}

fn start(app: &App, said: &AppServer, site: &Site) -> Arc<Server> {
    let address = record::address(said.socket.as_deref(), said.port);
    let name = format!("{}-{}", app.name(), said.place);
    Server::named(app.upstream().name(), address, &name, &site.metrics)
}

/// Whether somebody can listen there.
fn is_possible(said: &AppServer) -> bool {
    match record::address(said.socket.as_deref(), said.port) {
        Address::Unix(path) => path.is_absolute(),
        _ => said.port != 0,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use playhouse_serve::random::Random;
    use playhouse_serve::site::Handlers;

    use super::*;

    fn site() -> Arc<Site> {
        let text = r#"(name: "s", listeners: {"h": "127.0.0.1:0"}, apps: {"blog": (command: ["x"])})"#;
        let config = playhouse_config::parse(text, Path::new("/srv/site.ron")).unwrap();
        Site::new(&config, Handlers::default(), Random::seeded(1)).unwrap()
    }

    fn said(generation: u64, pids: &[u32]) -> AppsState {
        let server = |pid: &u32| AppServer {
            place: 1,
            pid: *pid,
            started: 3,
            socket: Some("/run/blog.sock".into()),
            port: 0,
            healthy: true,
        };
        let servers = pids.iter().map(server).collect();
        let apps = vec![AppState { name: "blog".into(), expected: true, servers }];
        AppsState { generation, apps, processes: Vec::new() }
    }

    #[tokio::test]
    async fn requests_go_where_the_controller_says_and_what_is_in_flight_is_told_to_the_end() {
        let (site, remote) = (site(), Remote::default());
        assert_eq!(remote.load(&site), None);
        remote.apply(said(7, &[11]), &site);
        let app = site.apps.get("blog").unwrap();
        let server = app.upstream().snapshot().all[0].server.clone();
        let lease = server.lease();
        let load = |remote: &Remote| {
            let load = remote.load(&site).unwrap();
            let of = |server: &AppServerLoad| (server.pid, server.in_flight, server.requests);
            (load.generation, load.apps[0].servers.iter().map(of).collect::<Vec<_>>())
        };
        assert_eq!(load(&remote), (7, vec![(11, 1, 1)]));
        remote.apply(said(8, &[11]), &site);
        assert!(Arc::ptr_eq(&app.upstream().snapshot().all[0].server, &server), "the same process");
        remote.apply(said(9, &[12]), &site);
        assert!(server.is_retired());
        assert_eq!(load(&remote), (9, vec![(11, 1, 1), (12, 0, 0)]));
        drop(lease);
        assert_eq!(load(&remote), (9, vec![(12, 0, 0)]));
        remote.apply(AppsState { generation: 10, ..AppsState::default() }, &site);
        assert!(!app.is_served());
        let odd = AppServer { socket: Some("relative".into()), ..said(1, &[1]).apps[0].servers[0].clone() };
        let none = AppServer { socket: None, port: 0, ..odd.clone() };
        let apps = vec![AppState { name: "blog".into(), expected: false, servers: vec![odd, none] }];
        remote.apply(AppsState { generation: 11, apps, processes: Vec::new() }, &site);
        assert!(!app.is_served() && app.expected() == Expected::Nothing);
    }
}
