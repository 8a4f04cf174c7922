//! The first host of Slurm's node lists: `node[001-004,7],gpu-[1-2]-b`.

use super::variable;
use crate::Result;

/// The first host: of every bracket the first number, up to the first comma outside of brackets.
pub(super) fn first_host(list: &str) -> Result<String> {
    let bad = || {
        let problem = format!("{list:?} is no node list; give --coordinator host:port");
        variable("SLURM_STEP_NODELIST", problem)
    };
    let mut host = String::new();
    let mut rest = list.trim();
    while let Some(end) = rest.find(['[', ']', ',']) {
        let (plain, tail) = rest.split_at(end);
        host.push_str(plain);
        if tail.starts_with(',') {
            rest = "";
            break;
        }
        let range = tail.strip_prefix('[').ok_or_else(bad)?;
        let (range, tail) = range.split_once(']').ok_or_else(bad)?;
        let number = range.split([',', '-']).next().unwrap_or_default();
        if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(bad());
        }
        host.push_str(number);
        rest = tail;
    }
    host.push_str(rest);
    if host.is_empty() || host.contains(char::is_whitespace) { Err(bad()) } else { Ok(host) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn expands_the_first_host() {
        let cases = [
            ("node7", "node7"),
            ("a,b,c", "a"),
            ("node[001-004,7]", "node001"),
            ("node[7,001-004]", "node7"),
            ("a-[1-2]-b", "a-1-b"),
            ("rack[2-3]-node[09-12],login", "rack2-node09"),
            ("login,node[1-2]", "login"),
            ("10.0.0.[5-9]", "10.0.0.5"),
        ];
        for (list, host) in cases {
            assert_eq!(first_host(list).unwrap(), host, "{list}");
        }
    }

    #[test]
    fn rejects_what_is_no_list() {
        for list in ["", " ", "node[", "node[]", "node[a-b]", "node]", ",a", "a b"] {
            let error = first_host(list).unwrap_err().to_string();
            assert!(error.contains("SLURM_STEP_NODELIST"), "{error}");
        }
    }
}
