//! A site: all tables that outlive an actor, and the application that routes.
/// All tables of one site.
#[derive(Debug)]
pub struct Site;
