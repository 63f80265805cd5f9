//! DokuWiki beneath a path, its directories where Debian has them.

use std::os::unix::fs::symlink;

use super::{nothing_has_failed, uploads};
use crate::harness::{Browser, Fpm, Running, Site, curl, eventually, install, libraries};

/// A site with the wiki at `/wiki/`, and the php-fpm that runs it. What the wiki's installer writes is where it looks for it.
fn wiki() -> (Running, Fpm) {
    let site = Site::new().field(r#"access_log: (to: "access.log")"#);
    let here = site.path("debian");
    install(
        &here,
        &[
            "usr/share/dokuwiki",
            "usr/share/php",
            "usr/share/php-geshi",
            "usr/share/javascript",
            "etc/dokuwiki",
            "var/lib/dokuwiki",
        ],
    );
    let root = here.join("usr/share/dokuwiki");
    symlink(here.join("var/lib/dokuwiki/data"), root.join("data")).unwrap();
    symlink(here.join("etc/dokuwiki"), root.join("conf")).unwrap();
    let fpm = Fpm::start(4, &format!("php_admin_value[include_path] = {}", libraries(&here)));
    let (root, data) = (root.display(), here.join("var/lib/dokuwiki"));
    let data = data.display();
    let site = site
        .server("php", fpm.unix())
        .route(format!(
            "(path: \"/wiki/\", to: FastCgi(upstream: \"php\", root: \"{root}\", follow: [\"{data}\"], \
             index: \"doku.php\", sendfile: \"{data}/data/media\"))"
        ))
        .route("(path: \"/wiki/data/\", to: Respond(status: 403, body: \"not for visitors\\n\"))")
        .start();
    (site, fpm)
}

#[test]
fn dokuwiki_is_installed_edited_and_given_files_by_a_browser() {
    let (site, _fpm) = wiki();
    let browser = Browser::start(&[]);
    let port = site.address("http").port();
    let url = |target: &str| format!("http://wiki.test:{port}/wiki{target}");
    let anybody = |target: &str| curl([site.url("http", &format!("/wiki{target}"))]);

    browser.open(&url("/install.php")).fill("#title", "Playhouse Wiki").fill("#superuser", "director");
    browser.fill("#fullname", "The Director").fill("#email", "director@wiki.test");
    // It would tell its makers.
    browser.fill("#password", PASSWORD).fill("#confirm", PASSWORD).click("#pop").click("button[name=submit]");
    browser.sees("body", "your new DokuWiki");

    // A wrong password first.
    browser.open(&url("/doku.php?id=start&do=login"));
    for (password, greeting) in [("wrong", "username or password was wrong"), (PASSWORD, "The Director")] {
        browser.fill("input[name=u]", "director").fill("input[name=p]", password);
        browser.click("#dw__login button[type=submit]").sees("body", greeting);
    }
    browser.open(&url("/doku.php?id=start&do=edit"));
    let text = "====== Opening night ======\n\nÜber **alles** Theater.\n\n{{poster.png}}";
    browser.fill("#wiki__text", text).click("#edbtn__save").sees("h1", "Opening night");
    browser.sees(".page strong", "alles").sees(".page p", "Über alles Theater.");
    assert!(anybody("/doku.php?id=start").expect(200).text().contains("Über <strong>alles</strong>"));

    let files = uploads(&site.path("."));
    for file in &files {
        let name = file.file_name().unwrap().to_str().unwrap();
        browser.open(&url("/lib/exe/mediamanager.php?ns=")).choose("input[type=file]", file);
        browser.click("#mediamanager__upload_button");
        let there = site.path("debian/var/lib/dokuwiki/data/media").join(name);
        let length = file.metadata().unwrap().len();
        eventually("it is uploaded", || there.metadata().is_ok_and(|file| file.len() == length));
    }
    // Through the script, and from us because the script says so.
    for setting in ["", "$conf['xsendfile'] = 2; $conf['userewrite'] = 2;"] {
        if !setting.is_empty() {
            site.write("debian/etc/dokuwiki/local.protected.php", format!("<?php {setting}"));
        }
        for (file, kind) in files.iter().zip(["image/png", "application/zip"]) {
            let target = format!("/lib/exe/fetch.php?media={}", file.file_name().unwrap().to_str().unwrap());
            let answer = anybody(&target).expect(200);
            assert_eq!(answer.header("content-type"), kind);
            assert!(answer.body == std::fs::read(file).unwrap(), "{} bytes of {target}", answer.body.len());
            assert!(!answer.headers.contains_key("x-sendfile"), "{answer:?}");
        }
        let ranged = curl(["-r", "100-109", &site.url("http", "/wiki/lib/exe/fetch.php?media=large.zip")]);
        assert_eq!(ranged.expect(206).body, std::fs::read(&files[1]).unwrap()[100..110]);
    }

    // Names behind that of the script, as the pages themselves have them now.
    browser.open(&url("/doku.php/start")).sees("h1", "Opening night");
    let pictures = "return await Promise.all([...document.querySelectorAll('.page img')].map(async image => {
        await image.decode();
        return image.naturalWidth;
    }))";
    assert_eq!(browser.run(pictures, &[]), serde_json::json!([1]));
    browser.open(&url("/doku.php/stage/door")).sees("h1", "This topic does not exist yet");
    // Its own files, beneath the root and where its links lead.
    for (file, kind) in [
        ("/lib/images/external-link.svg", "image/svg+xml"),
        ("/lib/tpl/dokuwiki/images/logo.png", "image/png"),
        ("/lib/plugins/acl/pix/ns.png", "image/png"),
    ] {
        assert_eq!(anybody(file).expect(200).header("content-type"), kind);
    }
    // And none that is not for visitors.
    anybody("/data/pages/start.txt").expect(403);
    for secret in ["/conf/users.auth.php", "/conf/local.php", "/.htaccess", "/conf/acl.auth.php"] {
        let text = anybody(secret).text();
        let betrayed = ["<?php", "$conf", "$1$", "$2y$", "@ALL"].iter().any(|source| text.contains(source));
        assert!(!betrayed, "{secret}: {text}");
    }
    nothing_has_failed(&site);
}

const PASSWORD: &str = "curtain-call-1889";
