//! Names of hosts and processes.

/// The longest part of a generated name that comes from the host.
const HOST_CHARS_MAX: usize = 60;

/// The host's name.
pub fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// A name for this process that no other process has: `prefix`, the host's name and a random suffix. Two processes
/// with one name would end each other's sessions.
pub fn unique(prefix: &str) -> String {
    let host: String = host().chars().filter(|c| !c.is_control()).take(HOST_CHARS_MAX).collect();
    let parts = [prefix, host.as_str()].into_iter().filter(|part| !part.is_empty());
    let mut name = parts.collect::<Vec<_>>().join("-");
    if name.is_empty() {
        name.push_str("node");
    }
    format!("{name}-{:08x}", rand::random::<u32>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unique_names_differ_and_have_a_bound() {
        let name = unique("gate");
        assert!(name.starts_with("gate-") && name.len() <= "gate-".len() + HOST_CHARS_MAX * 4 + 9, "{name}");
        assert_ne!(name, unique("gate"));
    }
}
