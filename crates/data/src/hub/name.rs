//! Valid names and revisions of repositories. Both become parts of paths in the cache.

const MAX_NAME: usize = 96;

/// Why a name cannot be on the hub; `None` if it can.
pub fn name_problem(name: &str) -> Option<String> {
    let parts: Vec<&str> = name.split('/').collect();
    let fault = match parts[..] {
        _ if parts.len() > 2 => "has more than one slash",
        _ if parts.iter().any(|part| part.is_empty()) => "has an empty part",
        _ if !name.chars().all(is_allowed) => "has other characters",
        _ if name.contains("..") || name.contains("--") => "has `..` or `--`",
        _ if parts
            .iter()
            .any(|part| part.starts_with(['.', '-']) || part.ends_with(['.', '-'])) =>
        {
            "has a part that starts or ends with `.` or `-`"
        }
        _ if name.len() > MAX_NAME => "is too long",
        _ => return None,
    };
    Some(format!(
        "not a name on the hub, which is `name` or `owner/name` of letters, digits, `-`, `_` and \
         `.`: it {fault}"
    ))
}

fn is_allowed(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || "-_./".contains(letter)
}

/// Why a revision is invalid.
pub(super) fn revision_problem(revision: &str) -> Option<String> {
    let is_valid = |part: &str| !part.is_empty() && part != "." && !part.contains("..");
    let has_odd =
        revision.contains(|letter: char| letter.is_control() || " \\?*:#%".contains(letter));
    if revision.split('/').all(is_valid) && !has_odd {
        return None;
    }
    Some(format!("`{revision}` is not a revision: pass a branch, a tag or a full commit"))
}

/// Whether a revision is a full commit, whose files never change.
pub(super) fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.chars().all(|digit| digit.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        for name in ["gpt2", "org/model", "meta-llama/Llama-3.2-1B", "a_b/c.d"] {
            assert_eq!(name_problem(name), None, "{name}");
        }
        for name in
            ["", "/", "a/", "/a", "a/b/c", "..", "a/..", "../a", ".a", "a b", "a--b", "a\\b"]
        {
            assert!(name_problem(name).is_some(), "{name}");
        }
    }

    #[test]
    fn revisions_are_checked() {
        for revision in ["main", "v1.0", "refs/pr/5", "feature/new-head"] {
            assert_eq!(revision_problem(revision), None, "{revision}");
        }
        for revision in ["", "../main", "a/../b", "/main", "main/", "a b", "a%2e"] {
            assert!(revision_problem(revision).is_some(), "{revision}");
        }
    }
}
