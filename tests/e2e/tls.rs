//! TLS: certificates by name, versions, protocols, and files that change.

use std::net::TcpStream;

use crate::harness::{Algorithm, Answer, Authority, Running, Site, Wire, curl, eventually};

const HELLO: &str = r#"(path: "/", to: Respond(status: 200, body: "hello\n"))"#;

/// A site with a default certificate (ECDSA), one for an exact name (RSA) and one for a wildcard (ECDSA).
struct Secure {
    site: Running,
    authority: Authority,
}

impl Secure {
    fn start() -> Self {
        let authority = Authority::new();
        let listener = r#"(bind: "127.0.0.1:0", tls: [
                (cert: "default.pem", key: "default.key"),
                (cert: "exact.pem", key: "exact.key"),
                (cert: "wild.pem", key: "wild.key"),
            ])"#;
        let site = Site::new().route(HELLO).listener("https", listener).listener("inner", listener);
        let folder = site.path(".");
        authority.write(&folder, "default", &["default.test", "127.0.0.1"], Algorithm::Ecdsa);
        authority.write(&folder, "exact", &["exact.test"], Algorithm::Rsa);
        authority.write(&folder, "wild", &["*.wild.test"], Algorithm::Ecdsa);
        let site = site.file("authority.pem", authority.pem()).start();
        Secure { site, authority }
    }

    /// Asks for `https://NAME/`, trusting only the test's authority.
    fn curl(&self, name: &str, options: &[&str]) -> Answer {
        let address = self.site.address("https");
        let (connect, url) = (format!("{name}:443:{address}"), format!("https://{name}/"));
        let authority = self.site.path("authority.pem");
        let mut arguments = vec!["--cacert", authority.to_str().unwrap(), "--connect-to", &connect];
        arguments.extend(options);
        arguments.push(&url);
        curl(arguments)
    }

    /// See [`crate::harness::resumes`].
    fn resumes(&self, listener: &str, version: &str, name: &str, with: Option<&str>, into: &str) -> bool {
        crate::harness::resumes(&self.site, listener, version, name, with, into)
    }

    /// The name in the certificate that a client gets who asks for `name`; without one, who sends no SNI.
    fn certificate_for(&self, name: Option<&str>) -> String {
        let address = self.site.address("https").to_string();
        let mut command = std::process::Command::new(crate::harness::tool("openssl", "openssl"));
        command.args(["s_client", "-connect", &address]);
        match name {
            Some(name) => command.args(["-servername", name]),
            None => command.arg("-noservername"),
        };
        let output = command.stdin(std::process::Stdio::null()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let subject = text.lines().find_map(|line| line.strip_prefix("subject=")).unwrap_or_default();
        subject.rsplit('=').next().unwrap_or_default().trim().to_owned()
    }
}

#[test]
fn the_certificate_follows_the_server_name() {
    let secure = Secure::start();
    for name in ["default.test", "exact.test", "a.wild.test", "b.wild.test"] {
        for (option, version) in [("--http1.1", "1.1"), ("--http2", "2")] {
            let answer = secure.curl(name, &[option]).expect(200);
            assert_eq!((answer.text().as_str(), answer.version.as_str()), ("hello\n", version), "{name}");
        }
    }
    assert_eq!(secure.certificate_for(Some("exact.test")), "exact.test");
    assert_eq!(secure.certificate_for(Some("EXACT.test")), "exact.test");
    assert_eq!(secure.certificate_for(Some("a.wild.test")), "*.wild.test");
    // A wildcard stands for one label.
    assert_eq!(secure.certificate_for(Some("a.b.wild.test")), "default.test 127.0.0.1");
    assert_eq!(secure.certificate_for(Some("wild.test")), "default.test 127.0.0.1");
    assert_eq!(secure.certificate_for(Some("unknown.test")), "default.test 127.0.0.1");
    assert_eq!(secure.certificate_for(None), "default.test 127.0.0.1");
}

#[test]
fn a_client_asks_for_much_over_one_h2_connection() {
    let secure = Secure::start();
    let address = secure.site.address("https");
    let (connect, authority) = (format!("exact.test:443:{address}"), secure.site.path("authority.pem"));
    let mut arguments = vec!["--http2", "--cacert", authority.to_str().unwrap(), "--connect-to", &connect];
    arguments.extend(["https://exact.test/"; 300]);
    let last = curl(arguments).expect(200);
    assert_eq!((&*last.version, last.connects), ("2", 0), "{last:?}");
    assert_eq!(secure.site.admin.settled_ledger().answered, 300);
}

#[test]
fn tls_1_2_and_1_3_are_spoken_with_both_kinds_of_key_and_nothing_older() {
    let secure = Secure::start();
    for name in ["default.test", "exact.test"] {
        for version in ["1.2", "1.3"] {
            let (least, most) = (format!("--tlsv{version}"), version);
            secure.curl(name, &[&least, "--tls-max", most]).expect(200);
        }
        let old = secure.curl(name, &["--tlsv1.1", "--tls-max", "1.1", "--ciphers", "DEFAULT@SECLEVEL=0"]);
        assert_ne!(old.exit, 0, "{old:?}");
    }
}

#[test]
fn a_client_that_offers_only_http_1_0_is_served_and_one_that_offers_nothing_of_ours_is_refused() {
    let secure = Secure::start();
    let answer = secure.curl("default.test", &["--http1.0"]).expect(200);
    assert_eq!(answer.text(), "hello\n");
    let name = rustls::pki_types::ServerName::try_from("default.test").unwrap();
    let session = rustls::ClientConnection::new(secure.authority.client(&[b"spdy/3"]), name).unwrap();
    let stream = TcpStream::connect(secure.site.address("https")).unwrap();
    let mut wire = Wire::over(rustls::StreamOwned::new(session, stream));
    let refused =
        wire.try_send("GET / HTTP/1.1\r\nHost: default.test\r\n\r\n").and_then(|()| wire.fill().map(|_| ()));
    // RFC 7301 §3.2
    assert!(refused.unwrap_err().to_string().contains("NoApplicationProtocol"));
}

#[test]
fn a_host_that_the_certificate_does_not_name_is_misdirected() {
    let secure = Secure::start();
    for option in ["--http1.1", "--http2"] {
        secure.curl("exact.test", &[option, "-H", "Host: a.wild.test"]).expect(421);
        secure.curl("exact.test", &[option, "-H", "Host: exact.test:443"]).expect(200);
    }
}

#[test]
fn cleartext_on_a_tls_port_and_a_broken_handshake_end_the_connection() {
    let secure = Secure::start();
    let address = secure.site.address("https");
    let mut plain = Wire::connect(address);
    plain.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(plain.response().status, 400, "a person who has forgotten the s is told so");
    plain.expect_closed();
    for garbage in [&[0x16, 3, 1, 0, 5, 1, 2, 3, 4, 5][..], &[0; 64]] {
        let mut wire = Wire::connect(address);
        wire.send(garbage);
        wire.finish();
        let rest = wire.rest();
        assert!(!rest.starts_with(b"HTTP/"), "{rest:?}");
    }
    secure.curl("default.test", &[]).expect(200);
    eventually("all connections are gone", || secure.site.admin.connections() == 0);
}

#[test]
fn a_certificate_whose_files_change_is_taken_up() {
    let secure = Secure::start();
    assert_eq!(secure.certificate_for(Some("exact.test")), "exact.test");
    secure.authority.write(
        &secure.site.path("."),
        "exact",
        &["exact.test", "renewed.test"],
        Algorithm::Ecdsa,
    );
    eventually("the new certificate is shown", || {
        secure.certificate_for(Some("exact.test")) == "exact.test renewed.test"
    });
    assert_eq!(secure.certificate_for(Some("renewed.test")), "exact.test renewed.test");
    secure.curl("renewed.test", &[]).expect(200);
    secure.curl("default.test", &[]).expect(200);
}

#[test]
fn a_broken_new_certificate_keeps_the_old_one_and_says_so() {
    let secure = Secure::start();
    secure.site.write("exact.pem", "this is no certificate\n");
    eventually("an event tells of it", || secure.site.admin.events().contains("exact.pem"));
    assert_eq!(secure.certificate_for(Some("exact.test")), "exact.test");
    secure.curl("exact.test", &[]).expect(200);

    // A certificate without its key, for a moment or for ever, is no better.
    let (certificate, key) = secure.authority.sign(&["exact.test", "second.test"], Algorithm::Ecdsa);
    secure.site.write("exact.pem", certificate);
    secure.curl("exact.test", &[]).expect(200);
    secure.site.write("exact.key", key);
    eventually("the pair that fits is taken up", || {
        secure.certificate_for(Some("second.test")) == "exact.test second.test"
    });
}

#[test]
fn a_broken_certificate_at_the_start_is_an_error() {
    let site = Site::new()
        .file("bad.pem", "nothing\n")
        .file("bad.key", "nothing\n")
        .listener("https", r#"(bind: "127.0.0.1:0", tls: [(cert: "bad.pem", key: "bad.key")])"#)
        .route(HELLO);
    let mut process = crate::harness::Process::start("playhouse", &mut site.command());
    assert_eq!(process.wait().code(), Some(1));
    assert!(process.output().contains("bad.pem"), "{}", process.output());
}

#[test]
fn an_open_connection_outlives_a_new_certificate() {
    let secure = Secure::start();
    let stream = TcpStream::connect(secure.site.address("https")).unwrap();
    let name = rustls::pki_types::ServerName::try_from("exact.test").unwrap();
    let session = rustls::ClientConnection::new(secure.authority.client(&[b"http/1.1"]), name).unwrap();
    let mut wire = Wire::over(rustls::StreamOwned::new(session, stream));
    wire.send("GET / HTTP/1.1\r\nHost: exact.test\r\n\r\n");
    assert_eq!(wire.response().text(), "hello\n");
    secure.authority.write(&secure.site.path("."), "exact", &["exact.test", "x.test"], Algorithm::Ecdsa);
    eventually("the new certificate is shown", || {
        secure.certificate_for(Some("x.test")) == "exact.test x.test"
    });
    wire.send("GET / HTTP/1.1\r\nHost: exact.test\r\n\r\n");
    assert_eq!(wire.response().text(), "hello\n");
}

#[test]
fn a_session_resumes_through_reloads_and_kills_but_only_where_it_began() {
    let mut secure = Secure::start();
    for version in ["-tls1_2", "-tls1_3"] {
        assert!(!secure.resumes("https", version, "exact.test", None, "first"));
        assert!(secure.resumes("https", version, "exact.test", Some("first"), "other"), "{version}");

        secure.site.edit(|site| {
            let path = version.trim_start_matches('-');
            site.route(format!(r#"(path: "/{path}", to: Respond(status: 200, body: "new\n"))"#))
        });
        secure.site.reload();
        secure.site.admin.kill_and_see_it_back("instance-1/certificates", "kill");
        assert!(secure.resumes("https", version, "exact.test", Some("first"), "other"), "{version}");

        assert!(!secure.resumes("inner", version, "exact.test", Some("first"), "other"), "{version}");
        assert!(!secure.resumes("https", version, "a.wild.test", Some("first"), "other"), "{version}");
        assert!(secure.resumes("https", version, "exact.test", Some("first"), "other"), "{version}");
    }
}

#[test]
fn a_session_of_another_process_costs_a_full_handshake() {
    let secure = Secure::start();
    let other = Secure::start();
    for version in ["-tls1_2", "-tls1_3"] {
        assert!(!secure.resumes("https", version, "exact.test", None, "session"));
        let session = std::fs::read(secure.site.path("session")).unwrap();
        other.site.write("session", session);
        assert!(!other.resumes("https", version, "exact.test", Some("session"), "own"), "{version}");
        assert!(other.resumes("https", version, "exact.test", Some("own"), "next"), "{version}");
    }
}
