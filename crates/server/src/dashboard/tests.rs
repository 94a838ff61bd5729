use std::{collections::BTreeSet, path::Path};

use axum::{body::Body, http::Request};
use tower::ServiceExt;

use super::*;

async fn ask(path: &str, known: Option<&str>) -> Response {
    let mut request = Request::get(path);
    if let Some(known) = known {
        request = request.header(header::IF_NONE_MATCH, known);
    }
    routes::<()>().oneshot(request.body(Body::empty()).expect("a request")).await.expect("an answer")
}

fn all() -> impl Iterator<Item = &'static File> {
    files::ALL.iter().chain([&files::INDEX])
}

#[tokio::test]
async fn every_file_is_served_with_a_strict_policy() {
    for file in all() {
        let path =
            if file.name == "index.html" { "/".to_owned() } else { format!("/dashboard/{}", file.name) };
        let response = ask(&path, None).await;
        assert_eq!(response.status(), 200, "{path}");
        let headers = response.headers();
        assert_eq!(headers[header::CONTENT_SECURITY_POLICY], POLICY, "{path}");
        assert_eq!(headers[header::X_CONTENT_TYPE_OPTIONS], "nosniff", "{path}");
        let tag = headers[header::ETAG].to_str().expect("text");
        assert_eq!(ask(&path, Some(tag)).await.status(), 304, "{path}");
        assert_eq!(ask(&path, Some("\"other\"")).await.status(), 200, "{path}");
    }
    assert!(!POLICY.contains("unsafe"));
    assert_eq!(ask("/dashboard/no-such.js", None).await.status(), 404);
    assert_eq!(ask("/dashboard", None).await.headers()[header::LOCATION], "./");
}

/// A file that is in the folder and not in the list would be missing in the browser only.
#[test]
fn the_list_has_every_file_of_the_folder() {
    fn collect(folder: &Path, root: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                collect(&path, root, found);
            } else {
                found.insert(path.strip_prefix(root).expect("a path below it").display().to_string());
            }
        }
    }
    let root = solehold_testkit::package_file("src/dashboard/files");
    let mut found = BTreeSet::new();
    collect(&root, &root, &mut found);
    assert_eq!(all().map(|file| file.name.to_owned()).collect::<BTreeSet<_>>(), found);
}

/// The policy would refuse it in the browser; here the file is named.
#[test]
fn nothing_is_inline_and_nothing_comes_from_elsewhere() {
    for file in all() {
        let text = file.text.replace("http://www.w3.org/2000/svg", "");
        for word in
            ["http://", "https://", "innerHTML", "eval(", "insertAdjacentHTML", "style=\"", "onclick=\""]
        {
            assert!(!text.contains(word), "{word} in {}", file.name);
        }
    }
    assert_eq!(files::INDEX.text.matches("<script").count(), 1);
    assert!(files::INDEX.text.contains(r#"<script type="module" src="dashboard/main.js"></script>"#));
}

/// People read these files too: none has more lines than a reader has patience for, nor longer ones.
#[test]
fn files_are_short() {
    for file in all() {
        let longest = file.text.lines().map(|line| line.chars().count()).max().unwrap_or_default();
        assert!(longest <= 120, "a line of {} has {longest} characters", file.name);
        let lines = file.text.lines().count();
        assert!(lines <= 400 || file.name == "style.css", "{} has {lines} lines", file.name);
    }
}
