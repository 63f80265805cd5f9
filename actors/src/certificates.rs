//! The certificates actor: reads certificate files again when they have changed, and rotates the keys of session tickets
//! where no controller does.

use std::sync::Arc;
use std::time::Duration;

use playhouse_serve::Site;
use playhouse_serve::tls::Event;
use playhouse_serve::tls::tickets::Rotation;

use crate::supervision::{Actor, Context, EventKind, Failure};

/// Looks after the site's certificate table. Handshakes go on without it.
pub struct Certificates {
    site: Arc<Site>,
}

impl Certificates {
    /// The actor of this site's table.
    pub fn new(site: Arc<Site>) -> Self {
        Certificates { site }
    }
}

impl Actor for Certificates {
    type Message = std::convert::Infallible;

    const KIND: &'static str = "certificates";

    async fn run(&mut self, context: &Context) -> Result<(), Failure> {
        let certificates = &self.site.certificates;
        let epoch = certificates.claim();
        let mut rotation = Rotation::default();
        loop {
            if certificates.rotate_ticket_keys(epoch, &mut rotation)? {
                tracing::debug!("a new key for TLS session tickets is in use");
            }
            // Looked at rather than watched: that also sees a change on a network file system, or through a link to a
            // directory that was swapped.
            for event in certificates.refresh(epoch)? {
                context.emit(EventKind::Certificates, context.seat().path(), message(&event));
            }
            context.progress();
            tokio::time::sleep(INTERVAL).await;
        }
    }

    async fn handle(&mut self, message: Self::Message, _: &Context) -> Result<(), Failure> {
        match message {}
    }
}

fn message(event: &Event) -> String {
    match event {
        Event::Replaced { files, .. } => format!("{} was read again and is in use", files.cert.display()),
        Event::Kept { files, error } => {
            format!(
                "{} cannot be used, the certificate before it stays in use: {error}",
                files.cert.display()
            )
        }
    }
}

const INTERVAL: Duration = Duration::from_millis(500);
