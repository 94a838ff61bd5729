//! The alert rules are rules that Prometheus takes, and they fire when they should.

use std::{path::Path, process::Command};

#[test]
fn promtool_accepts_the_alert_rules_and_their_tests() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/prometheus");
    for (what, file) in [("check", "orchestrator.rules.yaml"), ("test", "orchestrator.test.yaml")] {
        let output = Command::new("promtool").args([what, "rules", file]).current_dir(&folder).output();
        let output = output.expect("promtool is in Debian's package prometheus: scripts/install-test-deps");
        let said = [&output.stdout[..], &output.stderr[..]].concat();
        assert!(output.status.success(), "promtool {what} rules {file}: {}", String::from_utf8_lossy(&said));
    }
}
