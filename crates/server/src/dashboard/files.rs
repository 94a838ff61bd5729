//! The files of the dashboard, as they are in the folder `files`.

/// A file, and its path below `/dashboard/`.
#[derive(Debug)]
pub(super) struct File {
    pub name: &'static str,
    pub text: &'static str,
}

impl File {
    pub fn content_type(&self) -> &'static str {
        match self.name.rsplit_once('.').map(|(_, ending)| ending) {
            Some("js") => "text/javascript; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            Some("svg") => "image/svg+xml",
            _ => "text/html; charset=utf-8",
        }
    }
}

macro_rules! file {
    ($name:literal) => {
        File { name: $name, text: include_str!(concat!("files/", $name)) }
    };
}

/// The page itself, which is at `/`.
pub(super) static INDEX: File = file!("index.html");

pub(super) static ALL: &[File] = &[
    file!("actions.js"),
    file!("api.js"),
    file!("charts.js"),
    file!("dialog.js"),
    file!("dom.js"),
    file!("format.js"),
    file!("icon.svg"),
    file!("jobs.js"),
    file!("main.js"),
    file!("map.js"),
    file!("metrics.js"),
    file!("page.js"),
    file!("paint.js"),
    file!("search.js"),
    file!("store.js"),
    file!("style.css"),
    file!("timeline.js"),
    file!("watch.js"),
    file!("pages/audit.js"),
    file!("pages/charts.js"),
    file!("pages/deployments.js"),
    file!("pages/holder.js"),
    file!("pages/job.js"),
    file!("pages/jobs.js"),
    file!("pages/overview.js"),
    file!("pages/resource.js"),
    file!("pages/runners.js"),
    file!("pages/servers.js"),
];
