//! Paths of routes as a tree of their segments.

use playhouse_config::model::PathPattern;

/// Routes by path. Children are sorted and found by binary search: no hash a client could aim at, and the way down
/// reads each byte of the path once.
#[derive(Debug)]
pub(super) struct PathTree<T> {
    root: Node<T>,
}

impl<T> Default for PathTree<T> {
    fn default() -> Self {
        PathTree { root: Node::default() }
    }
}

impl<T> PathTree<T> {
    /// Adds a route unless there is one for the same pattern.
    pub(super) fn insert(&mut self, pattern: &PathPattern, route: T) {
        let (path, prefix) = match pattern {
            PathPattern::Exact(path) => (path, false),
            PathPattern::Prefix(path) => (path, true),
        };
        let path = path.strip_prefix('/').unwrap_or(path);
        let path = if prefix { path.strip_suffix('/').unwrap_or(path) } else { path };
        let mut node = &mut self.root;
        if !path.is_empty() {
            for segment in path.as_bytes().split(|byte| *byte == b'/') {
                node = node.child(segment);
            }
        }
        let slot = if prefix { &mut node.prefix } else { &mut node.exact };
        slot.get_or_insert(route);
    }

    /// The exact route of `path`, else that of the longest prefix.
    pub(super) fn find(&self, path: &[u8]) -> Option<&T> {
        let mut node = &self.root;
        let mut best = None;
        let mut rest = path.strip_prefix(b"/")?;
        loop {
            // Here a `/` stands behind the node's segment.
            best = node.prefix.as_ref().or(best);
            if node.children.is_empty() {
                return best;
            }
            let (segment, after) = match memchr::memchr(b'/', rest) {
                Some(slash) => (&rest[..slash], Some(&rest[slash + 1..])),
                None => (rest, None),
            };
            let Ok(index) = node.children.binary_search_by(|(name, _)| (**name).cmp(segment)) else {
                return best;
            };
            node = &node.children[index].1;
            match after {
                Some(after) => rest = after,
                None => return node.exact.as_ref().or(best),
            }
        }
    }
}

#[derive(Debug)]
struct Node<T> {
    /// The path that ends here, without a final slash.
    exact: Option<T>,
    /// The path that ends here with a slash, and all beneath.
    prefix: Option<T>,
    children: Vec<(Box<[u8]>, Node<T>)>,
}

impl<T> Default for Node<T> {
    fn default() -> Self {
        Node { exact: None, prefix: None, children: Vec::new() }
    }
}

impl<T> Node<T> {
    fn child(&mut self, segment: &[u8]) -> &mut Node<T> {
        let index = match self.children.binary_search_by(|(name, _)| (**name).cmp(segment)) {
            Ok(index) => index,
            Err(index) => {
                self.children.insert(index, (segment.into(), Node::default()));
                index
            }
        };
        &mut self.children[index].1
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_tree_agrees_with_a_linear_search(
            patterns in prop::collection::vec("(/[ab]{1,2}){0,3}/?", 0..12),
            path in "(/[ab]{0,2}){1,4}",
        ) {
            let patterns: Vec<String> =
                patterns.into_iter().map(|p| if p.is_empty() { "/".to_owned() } else { p }).collect();
            let mut tree = PathTree::default();
            for (number, pattern) in patterns.iter().enumerate() {
                let kind = if pattern.ends_with('/') { PathPattern::Prefix } else { PathPattern::Exact };
                tree.insert(&kind(pattern.clone()), number);
            }
            let exact = patterns.iter().position(|p| !p.ends_with('/') && *p == path);
            let longest = || {
                let prefixes = patterns.iter().enumerate().filter(|(_, p)| p.ends_with('/') && path.starts_with(*p));
                prefixes.rev().max_by_key(|(_, p)| p.len()).map(|(number, _)| number)
            };
            prop_assert_eq!(tree.find(path.as_bytes()).copied(), exact.or_else(longest));
        }
    }
}
