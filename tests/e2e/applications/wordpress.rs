//! WordPress with MariaDB, at the root of a site with TLS.

use super::{nothing_has_failed, uploads};
use crate::harness::{
    Algorithm, Answer, Authority, Browser, Fpm, Mariadb, Running, Site, curl, install, libraries,
};

/// A site with WordPress at its root, not installed yet, its database, and the php-fpm that runs it.
fn blog() -> (Running, Mariadb, Fpm) {
    let site = Site::new()
        .field(r#"access_log: (to: "access.log")"#)
        .listener("https", r#"(bind: "127.0.0.1:0", tls: [(cert: "blog.pem", key: "blog.key")])"#);
    Authority::new().write(&site.path("."), "blog", &["blog.test"], Algorithm::Ecdsa);
    let here = site.path("debian");
    install(&here, &["usr/share/wordpress", "usr/share/php", "usr/share/javascript"]);
    let root = here.join("usr/share/wordpress");
    let database = Mariadb::start(&here, "blog");
    let secrets = [
        "AUTH_KEY",
        "SECURE_AUTH_KEY",
        "LOGGED_IN_KEY",
        "NONCE_KEY",
        "AUTH_SALT",
        "SECURE_AUTH_SALT",
        "LOGGED_IN_SALT",
        "NONCE_SALT",
    ];
    let secrets: String =
        secrets.iter().map(|name| format!("define('{name}', '{name} of the tests');\n")).collect();
    let configuration = format!(
        "<?php\ndefine('DB_NAME', 'blog'); define('DB_USER', 'blog'); define('DB_PASSWORD', '');\n\
         define('DB_HOST', 'localhost:{}'); define('DB_CHARSET', 'utf8mb4'); define('DB_COLLATE', '');\n{secrets}\
         define('WP_HTTP_BLOCK_EXTERNAL', true); define('AUTOMATIC_UPDATER_DISABLED', true); define('DISABLE_WP_CRON', true);\n\
         $table_prefix = 'wp_';\nif (!defined('ABSPATH')) define('ABSPATH', __DIR__ . '/');\n\
         require_once ABSPATH . 'wp-settings.php';\n",
        database.socket.display()
    );
    std::fs::write(root.join("wp-config.php"), configuration).unwrap();
    std::fs::create_dir(root.join("wp-content/uploads")).unwrap();
    let fpm = Fpm::start(4, &format!("php_admin_value[include_path] = {}", libraries(&here)));
    let site = site
        .server("php", fpm.unix())
        .route(format!(
            "(path: \"/\", to: FastCgi(upstream: \"php\", root: \"{}\", follow: [\"{}/usr/share\"]))",
            root.display(),
            here.display()
        ))
        .start();
    (site, database, fpm)
}

#[test]
fn wordpress_is_installed_written_in_and_given_files_by_a_browser() {
    let (site, _database, _fpm) = blog();
    let browser = Browser::start(&[]);
    let address = site.address("https");
    let origin = format!("https://blog.test:{}", address.port());
    let url = |target: &str| format!("{origin}{target}");
    let anybody = |arguments: &[&str], target: &str| -> Answer {
        let connect = format!("blog.test:{0}:{address}", address.port());
        let url = url(target);
        curl(arguments.iter().copied().chain(["--http2", "--insecure", "--connect-to", &connect, &url]))
    };

    // To the installer, from anywhere.
    browser.open(&url("/wp-admin")).sees("h1", "Welcome").fill("#weblog_title", "Playhouse Blog");
    browser
        .fill("#user_login", "director")
        .fill("#pass1", PASSWORD)
        .fill("#admin_email", "director@blog.test");
    browser.click("#submit").sees("h1", "Success!");
    browser.open(&url("/wp-login.php")).fill("#user_login", "director").fill("#user_pass", PASSWORD);
    browser.click("#wp-submit").sees("h1", "Dashboard");
    browser.open(&url("/wp-admin/options-permalink.php"));
    browser.fill("#permalink_structure", "/%year%/%postname%/").click("#submit");
    browser.sees(".notice", "Permalink structure updated");

    // In its editor, which is a program that speaks JSON.
    browser.open(&url("/wp-admin/post-new.php"));
    let greeting = "const editor = wp.data.dispatch('core/edit-post');
        if (wp.data.select('core/edit-post').isFeatureActive('welcomeGuide')) editor.toggleFeature('welcomeGuide');";
    browser.run(greeting, &[]);
    browser.fill(".editor-post-title__input", "Opening night");
    browser.click(".block-editor-default-block-appender__content");
    browser.fill("p.block-editor-rich-text__editable", "Über alles Theater.");
    browser.click(".editor-post-publish-panel__toggle").click(".editor-post-publish-button");
    browser.sees(".post-publish-panel__postpublish-header, .components-snackbar", "is now live");
    let link = browser.run("return wp.data.select('core/editor').getPermalink()", &[]);
    let link = link.as_str().unwrap().to_owned();
    assert!(link.starts_with(&origin) && link.ends_with("/opening-night/"), "{link}");
    browser.open(&link).sees("h1", "Opening night").sees("p", "Über alles Theater.");
    let target = link.strip_prefix(&origin).unwrap();
    assert!(anybody(&[], target).expect(200).text().contains("Über alles Theater."));
    let moved = anybody(&[], target.trim_end_matches('/')).expect(301);
    assert_eq!(moved.header("location"), link);

    for file in uploads(&site.path(".")) {
        let name = file.file_name().unwrap().to_str().unwrap();
        browser.open(&url("/wp-admin/media-new.php?browser-uploader")).choose("#async-upload", &file);
        browser.click("#html-upload").arrives("/wp-admin/upload.php");
        browser.open(&url("/wp-admin/upload.php?mode=list")).sees("td", name);
        let where_it_is = "const answer = await fetch('/wp-json/wp/v2/media');
            return (await answer.json()).map(media => media.source_url).find(url => url.endsWith(arguments[0]))";
        let source = browser.run(where_it_is, &[name.into()]);
        let target = source
            .as_str()
            .and_then(|source| source.strip_prefix(&origin))
            .unwrap_or_else(|| panic!("{source}"));
        let content = std::fs::read(&file).unwrap();
        assert!(anybody(&[], target).expect(200).body == content, "{target}");
        assert_eq!(anybody(&["-r", "10-19"], target).expect(206).body, content[10..20]);
    }
    assert!(anybody(&[], "/no/such/page").expect(404).text().contains("Playhouse Blog"));
    // Scripts that are no pages, and a source that is none.
    anybody(&["-I"], "/wp-includes/js/underscore.min.js").expect(200);
    for secret in ["/wp-config.php", "/wp-config.php~", "/.htaccess", "/WP-CONFIG.PHP"] {
        assert!(!anybody(&[], secret).text().contains("DB_PASSWORD"), "{secret}");
    }
    nothing_has_failed(&site);
}

const PASSWORD: &str = "curtain-call-1889";
