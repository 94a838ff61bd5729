//! Checks `commands` in the file.

use solehold_process::config::{InvalidValue, invalid};

use crate::config::file::{CommandsFile, OrPath};
use crate::model::{
    command::{
        KindMapping, Mapping, Place,
        mapping::{id_bounds, is_id},
    },
    limits::LABELS_MAX,
    path::{Path, PathError},
    pipeline::StagePlan,
    template::{TemplateError, Text},
};

const LABEL_NAME_BYTES_MAX: usize = 64;

pub(super) fn settle(file: &CommandsFile) -> Result<Mapping, InvalidValue> {
    let mut mapping = Mapping::default();
    if let Some(path) = &file.job_id {
        mapping.job_id = path_at("job_id", path)?;
    }
    if let Some(path) = &file.command_id {
        mapping.command_id = path_at("command_id", path)?;
    }
    if let Some(OrPath(given)) = &file.r#type {
        mapping.kind = KindMapping {
            place: Place { path: path_at("type", &given.path)?, default: given.default },
            values: if given.values.is_empty() { KindMapping::own_values() } else { given.values.clone() },
        };
    }
    if let Some(OrPath(given)) = &file.input {
        mapping.input = Some(Place { path: path_at("input", &given.path)?, default: given.default.clone() });
    }
    if file.labels.len() > LABELS_MAX {
        let what = format!("commands.labels has {} labels, more than {LABELS_MAX}", file.labels.len());
        return invalid("commands/labels", what);
    }
    for (name, OrPath(given)) in &file.labels {
        let key = format!("labels/{name}");
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
        if name.is_empty() || name.len() > LABEL_NAME_BYTES_MAX || !name.chars().all(is_plain) {
            let wanted = format!("use 1 to {LABEL_NAME_BYTES_MAX} letters, digits, `_` or `-`");
            return at(&key, format!("{name:?} cannot be the name of a label: {wanted}"));
        }
        if given.default.as_deref().is_some_and(|default| !is_id(default)) {
            return at(&key, format!("the default of label {name} must be {}", id_bounds()));
        }
        let place = Place { path: path_at(&key, &given.path)?, default: given.default.clone() };
        mapping.labels.insert(name.clone(), place);
    }
    mapping.key = file.key.as_deref().map(|key| key_template(key, &mapping)).transpose()?;
    Ok(mapping)
}

fn at<T>(key: &str, what: impl Into<String>) -> Result<T, InvalidValue> {
    invalid(&format!("commands/{key}"), what)
}

fn path_at(key: &str, text: &str) -> Result<Path, InvalidValue> {
    text.parse().or_else(|error: PathError| at(key, format!("commands.{}: {error}", key.replace('/', "."))))
}

/// The key may contain only values that are compared with the job: otherwise commands of one job could have different
/// keys.
fn key_template(written: &str, mapping: &Mapping) -> Result<Text, InvalidValue> {
    let template: Text =
        written.parse().or_else(|error: TemplateError| at("key", format!("commands.key: {error}")))?;
    let is_known = |path: &Path| match path.parts() {
        [name] => name == "job_id",
        [labels, name] => labels == "labels" && mapping.labels.contains_key(name),
        _ => false,
    };
    if let Some(unknown) = template.paths().find(|path| !is_known(path)) {
        let known: Vec<String> = mapping.labels.keys().map(|name| format!("{{labels.{name}}}")).collect();
        let known = [vec!["{job_id}".to_owned()], known].concat().join(", ");
        return at("key", format!("commands.key has {{{unknown}}}, which is not one of {known}"));
    }
    if template.paths().next().is_none() {
        return at(
            "key",
            "commands.key is the same for all jobs, so all would be in one partition: use {job_id} or a label",
        );
    }
    Ok(template)
}

/// Checks that labels in the arguments of tasks are configured.
pub(super) fn check_labels(stage: &StagePlan, mapping: &Mapping) -> Result<(), InvalidValue> {
    for (name, template) in stage.templates() {
        for (place, path) in template.paths() {
            if let [labels, label] = path.parts()
                && labels == "labels"
                && !mapping.labels.contains_key(label)
            {
                let what = format!("{name}{place} has {{{path}}}, and commands.labels has no {label}");
                return invalid(
                    &format!("stages/{}/{name}", stage.name),
                    format!("stage {}: {what}", stage.name),
                );
            }
        }
    }
    Ok(())
}
