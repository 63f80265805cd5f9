//! Users and groups by name, as the host's own files have them.

use std::{fs, io};

/// Whom a process is to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// `None` stays the site's own.
    pub uid: Option<u32>,
    /// `None` stays the site's own.
    pub gid: Option<u32>,
    /// All its groups, its own first; `None` stays with the site's own.
    pub groups: Option<Vec<u32>>,
    /// Its name and home directory, where the user is known.
    pub home: Option<(String, String)>,
}

impl Account {
    /// Finds user and group, each by name or number. What is said of an unknown one is for people. Reads files of `/etc`.
    pub fn find(user: Option<&str>, group: Option<&str>) -> Result<Account, String> {
        let read = |path: &str| fs::read_to_string(path).map_err(|error| format!("{path}: {error}"));
        let passwd = if user.is_some() { read("/etc/passwd")? } else { String::new() };
        let groups = match fs::read_to_string("/etc/group") {
            _ if user.is_none() && group.is_none() => String::new(),
            // Nobody is in a group there.
            Err(error) if group.is_none() && error.kind() == io::ErrorKind::NotFound => String::new(),
            groups => groups.map_err(|error| format!("/etc/group: {error}"))?,
        };
        Self::find_in(user, group, &passwd, &groups)
    }

    fn find_in(
        user: Option<&str>,
        group: Option<&str>,
        passwd: &str,
        groups: &str,
    ) -> Result<Account, String> {
        let mut account = Account::default();
        if let Some(user) = user {
            let entry = find(passwd, user).filter(|entry| entry.len() >= 6);
            match entry {
                Some(entry) => {
                    account.uid = entry[2].parse().ok();
                    account.gid = entry[3].parse().ok();
                    account.home = Some((entry[0].to_owned(), entry[5].to_owned()));
                }
                None => account.uid = user.parse().ok(),
            }
            if account.uid.is_none() {
                return Err(format!("there is no user {user:?}"));
            }
        }
        if let Some(group) = group {
            let entry = find(groups, group);
            account.gid = entry.and_then(|entry| entry[2].parse().ok()).or(group.parse().ok());
            if account.gid.is_none() {
                return Err(format!("there is no group {group:?}"));
            }
        }
        if account.uid.is_some() && account.gid.is_none() {
            return Err(format!("the user {:?} has no group here; write one", user.unwrap_or_default()));
        }
        if let (Some(_), Some(gid)) = (account.uid, account.gid) {
            let name = account.home.as_ref().map(|(name, _)| name.as_str());
            account.groups = Some(with_members(groups, gid, name));
        }
        Ok(account)
    }
}

/// This group, and those that list the user as a member.
fn with_members(groups: &str, own: u32, user: Option<&str>) -> Vec<u32> {
    let mut all = vec![own];
    for line in groups.lines() {
        let mut fields = line.split(':').skip(2);
        let (Some(gid), Some(members)) = (fields.next(), fields.next()) else { continue };
        let is_member = user.is_some_and(|user| members.split(',').any(|member| member == user));
        if let Ok(gid) = gid.parse()
            && is_member
            && !all.contains(&gid)
        {
            all.push(gid);
        }
    }
    // As many as the kernel takes at once (NGROUPS_MAX).
    all.truncate(65_536);
    all
}

/// The entry with this name, or this number.
fn find<'a>(file: &'a str, wanted: &str) -> Option<Vec<&'a str>> {
    let entries = || file.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let entries = || entries().filter(|entry| entry.len() >= 3);
    entries().find(|entry| entry[0] == wanted).or_else(|| {
        wanted.parse::<u32>().ok()?;
        entries().find(|entry| entry[2] == wanted)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\n# a comment\nweb:x:33:34:Web:/var/www:/usr/sbin/nologin\n7:x:9:9::/:/bin/sh\n";
    const GROUPS: &str =
        "root:x:0:\nstaff:x:50:a,web,b\nweb:x:34:web\nshadow:x:42:webb,we\nssl:x:12:web\nbad:x:y:web\n";

    #[test]
    fn accounts_are_found_by_name_and_by_number() {
        let find = |user, group| Account::find_in(user, group, PASSWD, GROUPS);
        let web = find(Some("web"), None).unwrap();
        assert_eq!((web.uid, web.gid), (Some(33), Some(34)));
        assert_eq!(web.home, Some(("web".into(), "/var/www".into())));
        assert_eq!(find(Some("33"), Some("staff")).unwrap().gid, Some(50));
        assert_eq!(find(Some("7"), None).unwrap().uid, Some(9), "a name comes before a number");
        assert_eq!(
            find(Some("1234"), Some("51")).unwrap(),
            Account { uid: Some(1234), gid: Some(51), groups: Some(vec![51]), home: None }
        );
        assert!(find(Some("1234"), None).unwrap_err().contains("no group"));
        assert!(find(Some("nobody-here"), None).unwrap_err().contains("no user"));
        assert!(find(None, Some("nobody-here")).unwrap_err().contains("no group"));
        assert_eq!(find(None, None).unwrap(), Account::default());
    }

    #[test]
    fn a_user_is_in_every_group_that_lists_it() {
        let groups = |user, group| Account::find_in(user, group, PASSWD, GROUPS).unwrap().groups;
        assert_eq!(groups(Some("web"), None), Some(vec![34, 50, 12]));
        assert_eq!(groups(Some("33"), Some("staff")), Some(vec![50, 34, 12]));
        assert_eq!(groups(Some("root"), None), Some(vec![0]));
        assert_eq!(groups(None, Some("staff")), None, "who stays who it is stays in its groups");
    }
}
