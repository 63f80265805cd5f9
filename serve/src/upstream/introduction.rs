//! The PROXY header at the beginning of a connection to a server.

use bytes::BytesMut;
use playhouse_config::model::ProxyVersion;
use playhouse_protocol::proxy_protocol::{Origin, Tls, Tlvs, Transport, write_v1, write_v2};

use crate::ConnectionInfo;

/// Writes the header of a connection on behalf of a client, or of our own where there is none, as with health checks.
pub(crate) fn introduce(out: &mut BytesMut, version: ProxyVersion, client: Option<&ConnectionInfo>) {
    let origin = client.map_or(Origin::Local, origin);
    match version {
        ProxyVersion::V1 => write_v1(out, &origin),
        ProxyVersion::V2 => {
            let begin = out.len();
            let tlvs = client.map(tlvs).unwrap_or_default();
            if write_v2(out, &origin, &tlvs, false).is_err() {
                // A name that is too long is none.
                out.truncate(begin);
                let _ = write_v2(out, &origin, &Tlvs::default(), false);
            }
        }
    }
}

fn origin(client: &ConnectionInfo) -> Origin {
    match (client.peer.address(), client.local) {
        (Some(source), Some(destination)) => {
            Origin::Inet { transport: Transport::Stream, source, destination }
        }
        _ => Origin::Unknown,
    }
}

fn tlvs(client: &ConnectionInfo) -> Tlvs {
    let tls = (client.scheme() == "https").then(|| Tls {
        used: true,
        version: client.tls_version().map(Box::from),
        ..Tls::default()
    });
    Tlvs { authority: client.server_name().map(Box::from), tls, ..Tlvs::default() }
}
