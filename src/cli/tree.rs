//! `playhouse tree`

use std::fmt::Write;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde::Deserialize;

use super::output::{Output, Tone, age, count, fit, terminal_size};
use super::target::{Found, Target};

/// Show the tree of actors of a running site.
///
/// For each: its state, its age, how many messages wait, how often it was restarted and why last. The names from the
/// root, joined by `/`, are the path that `playhouse kill` takes. Shards of connections that nothing has happened to share
/// a line.
#[derive(Debug, Args)]
pub(super) struct Tree {
    /// Show it again and again, until interrupted
    #[arg(long)]
    watch: bool,
    /// List every shard and every connection, which are only counted otherwise
    #[arg(long)]
    connections: bool,
    #[command(flatten)]
    target: Target,
}

/// What is shown of an actor. Another build may say more, or not all of it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Node {
    path: String,
    kind: String,
    state: String,
    restarts: u64,
    last_cause: Option<String>,
    mailbox: u64,
    age_ms: u64,
    connections: Option<u64>,
    children: Vec<Node>,
}

impl Tree {
    pub(super) fn execute(self, output: Output) -> anyhow::Result<()> {
        let page = if self.connections { "/v1/tree?connections=1" } else { "/v1/tree" };
        loop {
            // Found anew each time: a controller may come or go while one watches.
            let tree = match self.target.find()? {
                Found::Site(admin) => admin.get(page)?,
                Found::Orphans(orphans) => orphans.tree(page),
            };
            if output.is_json() {
                output.json(&tree)?;
            } else {
                let tree =
                    serde_json::from_value(tree).with_context(|| format!("{page}: not what was expected"))?;
                let text = render(&tree, self.connections, output);
                if self.watch {
                    // Home, each line to its end, then what is left beneath: nothing flickers. A line that wraps, or one
                    // too many, would scroll.
                    let text = terminal_size().map_or(text.clone(), |size| fit(&text, size));
                    let text = text.replace('\n', "\x1b[K\n");
                    output.text(&format!("\x1b[H{text}\x1b[J"))?;
                } else {
                    output.text(&text)?;
                }
            }
            if !self.watch {
                return Ok(());
            }
            thread::sleep(INTERVAL);
        }
    }
}

fn render(root: &Node, all: bool, output: Output) -> String {
    let mut rows = Vec::new();
    let summed = if all { None } else { Some(sum_up(root)) };
    gather(summed.as_ref().unwrap_or(root), "", "", None, &mut rows);
    let width = rows.iter().map(|row| row.name.chars().count()).max().unwrap_or_default();
    let mut text = String::new();
    for Row { name, node } in &rows {
        let state = output.toned(tone(&node.state), &format!("{:<10}", node.state));
        let name = output.toned(Tone::Plain, name);
        // Writing to a string does not fail.
        let _ = write!(text, "{name:<width$}  {state} {:>8}", age(node.age_ms));
        if let Some(connections) = node.connections {
            text += &format!("  {}", count(connections, "connection"));
        }
        if node.mailbox > 0 {
            text += &output.toned(Tone::Warning, &format!("  {} waiting", node.mailbox));
        }
        if node.restarts > 0 {
            text += &output.toned(Tone::Warning, &format!("  {}", count(node.restarts, "restart")));
        }
        if let Some(cause) = &node.last_cause {
            text += &output.toned(Tone::Faint, &format!("  last: {cause}"));
        }
        text.push('\n');
    }
    text
}

/// The tree with each run of like shards in one node: a site has sixteen of them, and as a rule they are all well.
fn sum_up(node: &Node) -> Node {
    let mut children: Vec<Node> = Vec::new();
    let mut run = 1;
    for child in node.children.iter().map(sum_up) {
        match children.last_mut() {
            Some(last) if is_quiet(last) && is_quiet(&child) && last.restarts == child.restarts => {
                run += 1;
                let first = last.path.split(SPAN).next().unwrap_or_default();
                let name = child.path.rsplit('/').next().unwrap_or_default();
                last.path = format!("{first}{SPAN}{name} ({run})");
                last.mailbox += child.mailbox;
                last.age_ms = last.age_ms.min(child.age_ms);
                last.connections = Some(last.connections.unwrap_or(0) + child.connections.unwrap_or(0));
            }
            _ => {
                run = 1;
                children.push(child);
            }
        }
    }
    Node { children, ..node.clone() }
}

fn is_quiet(node: &Node) -> bool {
    node.kind == "shard" && node.state == "running" && node.last_cause.is_none() && node.children.is_empty()
}

/// No actor's name has it.
const SPAN: &str = " … ";

struct Row<'a> {
    /// With the lines that lead to it.
    name: String,
    node: &'a Node,
}

fn gather<'a>(node: &'a Node, lead: &str, below: &str, parent: Option<&str>, rows: &mut Vec<Row<'a>>) {
    let name =
        parent.and_then(|parent| node.path.strip_prefix(parent)?.strip_prefix('/')).unwrap_or(&node.path);
    rows.push(Row { name: format!("{lead}{name}"), node });
    for (index, child) in node.children.iter().enumerate() {
        let (branch, line) =
            if index + 1 == node.children.len() { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        gather(child, &format!("{below}{branch}"), &format!("{below}{line}"), Some(&node.path), rows);
    }
}

fn tone(state: &str) -> Tone {
    match state {
        "running" => Tone::Good,
        "starting" | "stopping" | "draining" | "backoff" => Tone::Warning,
        "" => Tone::Plain,
        _ => Tone::Bad,
    }
}

const INTERVAL: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_hang_on_lines_beneath_their_parent() {
        let tree = serde_json::json!({
            "path": "instance-1", "state": "running", "age_ms": 2_000,
            "children": [
                {"path": "instance-1/listeners", "state": "running", "age_ms": 2_000, "children": [
                    {"path": "instance-1/listeners/http", "state": "failed", "restarts": 2,
                     "last_cause": "panicked: \u{1b}x", "mailbox": 3},
                ]},
                {"path": "instance-1/metrics", "state": "running", "connections": 4, "later": true},
            ],
        });
        let text = render(&serde_json::from_value(tree).unwrap(), false, Output::new(true));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("instance-1 "), "{text}");
        assert!(lines[1].starts_with("├─ listeners "), "{text}");
        assert!(lines[2].starts_with("│  └─ http "), "{text}");
        assert!(lines[2].contains("3 waiting") && lines[2].contains("2 restarts"), "{text}");
        assert!(lines[2].contains("last: panicked: \u{fffd}x"), "{text}");
        assert!(lines[3].starts_with("└─ metrics ") && lines[3].contains("4 connections"), "{text}");
    }
    #[test]
    fn shards_that_nothing_has_happened_to_share_a_line() {
        let shard = |number: u64, restarts: u64| {
            serde_json::json!({"path": format!("c/shard-{number}"), "kind": "shard", "state": "running",
                "restarts": restarts, "connections": number})
        };
        let tree = serde_json::json!({
            "path": "c", "kind": "supervisor", "state": "running",
            "children": [shard(0, 0), shard(1, 0), shard(2, 0), shard(3, 1), shard(4, 0)],
        });
        let tree: Node = serde_json::from_value(tree).unwrap();
        let text = render(&tree, false, Output::new(true));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines[1].contains("shard-0 … shard-2 (3)") && lines[1].contains(" 3 connections"), "{text}");
        assert!(lines[2].contains("shard-3 ") && lines[2].contains("1 restart"), "{text}");
        assert_eq!(render(&tree, true, Output::new(true)).lines().count(), 6);
    }
}
