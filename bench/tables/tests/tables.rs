//! No query reads much more than it returns, however full the tables are: an index that is missing shows here.

#![allow(clippy::unwrap_used, reason = "a test that panics says where")]

/// Enough that a scan of one partition reads more than the bound.
const ROWS: i64 = 20_000;

#[tokio::test]
async fn no_query_reads_a_hundred_times_what_it_returns() {
    let findings = solehold_bench_tables::run(ROWS, |_| {}).await.unwrap();
    let excessive = findings.excessive();
    assert!(excessive.is_empty(), "{} statements read too much:\n{}", excessive.len(), excessive.join("\n"));
}
