//! `solehold admin key`: make, list, rotate and revoke API keys.

use std::time::Duration;

use clap::{Subcommand, ValueEnum};
use serde_json::{Value, json};
use solehold_api::{
    admin::{ApiKey, CreateKey, KeyList, KeyScope, NewKey, Role, RotateKey},
    field::{maybe_name, name},
    paths,
    problem::Problem,
    time::Timestamp,
};
use solehold_clock::wall_ms;
use solehold_core::time::StoreTime;
use solehold_server::keys::{self, Key};

use super::Door;
use crate::{
    client::Method,
    error::{CommandError, CommandResult, Doing, ValueError},
    global::GlobalArgs,
    human::{ago, duration_ms},
    output::{self, or_dash},
};

#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Create a key and print its secret, which cannot be shown again; with --tenant it is valid for that tenant only
    #[command(after_help = examples!(
        "admin key create --name first --role admin --data-dir /var/lib/solehold",
        "admin key create --name cameras --role runner --only camera --expires 90days",
    ))]
    Create {
        /// Name of the key, for people
        #[arg(long)]
        name: String,
        /// Role of the key
        #[arg(long)]
        role: RoleArg,
        /// Limit it to resources of this kind, or to those whose keys begin with PREFIX; may be repeated
        #[arg(long, value_name = "KIND[/PREFIX]", value_parser = scope)]
        only: Vec<KeyScope>,
        /// Name in client certificates that maps to the key
        #[arg(long, value_name = "NAME")]
        certificate: Option<String>,
        /// Time that the key is valid, as in 90days [default: forever]
        #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
        expires: Option<Duration>,
    },
    /// List the keys that are not revoked
    #[command(after_help = examples!("admin key ls"))]
    Ls {
        /// At most N keys [default: all]
        #[arg(long, value_name = "N")]
        limit: Option<usize>,
    },
    /// Give a key a new secret and print it; it cannot be shown again, and the old one stays valid for --grace
    #[command(after_help = examples!("admin key rotate cameras --grace 1h"))]
    Rotate {
        /// Its id or its name, as `ls` shows them
        #[arg(value_name = "KEY")]
        id: String,
        /// Time that the old secret stays valid
        #[arg(long, value_name = "TIME", default_value = "1h", value_parser = humantime::parse_duration)]
        grace: Duration,
        /// Time that the new secret is valid, as in 90days [default: as the old one]
        #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
        expires: Option<Duration>,
    },
    /// Revoke a key permanently
    #[command(after_help = examples!("admin key revoke cameras"))]
    Revoke {
        /// Its id or its name, as `ls` shows them
        #[arg(value_name = "KEY")]
        id: String,
    },
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum RoleArg {
    /// Read everything
    Reader,
    /// Also register, acquire, renew and release
    Runner,
    /// Also declare, revoke and administer
    Admin,
}

impl From<RoleArg> for Role {
    fn from(role: RoleArg) -> Self {
        match role {
            RoleArg::Reader => Self::Reader,
            RoleArg::Runner => Self::Runner,
            RoleArg::Admin => Self::Admin,
        }
    }
}

/// A kind of resource, or a kind and how keys of it begin.
fn scope(text: &str) -> Result<KeyScope, ValueError> {
    let (kind, prefix) = text.split_once('/').map_or((text, None), |(kind, prefix)| (kind, Some(prefix)));
    if kind.is_empty() {
        return Err("has no kind; write KIND or KIND/PREFIX, as in scene or lock/nightly-".into());
    }
    Ok(KeyScope { kind: kind.to_owned(), key_prefix: prefix.filter(|p| !p.is_empty()).map(str::to_owned) })
}

/// What a key is limited to, as it is typed.
fn limits(key: &ApiKey) -> String {
    let each = key.only.iter().map(|scope| match &scope.key_prefix {
        Some(prefix) => format!("{}/{prefix}", scope.kind),
        None => scope.kind.clone(),
    });
    each.collect::<Vec<_>>().join(" ")
}

fn word(role: Role) -> &'static str {
    match role {
        Role::Reader => "reader",
        Role::Runner => "runner",
        Role::Admin => "admin",
    }
}

pub async fn run(
    command: KeyCommand,
    door: &Door,
    tenant: Option<String>,
    global: &GlobalArgs,
) -> CommandResult {
    match command {
        KeyCommand::Create { name, role, only, certificate, expires } => {
            let role = role.into();
            let expires_in_seconds = expires.map(seconds);
            let ask = CreateKey { name, role, tenant, only, certificate, expires_in_seconds };
            let doing = |failure: CommandError| failure.doing(format!("make key {:?}", ask.name));
            let key = create(&ask, door).await.map_err(doing)?;
            show("made key", &key, global)
        }
        KeyCommand::Ls { limit } => {
            let keys = list(limit, tenant, door).await.doing("list the keys")?;
            output::list(
                global,
                "keys",
                &keys,
                "there are no keys: everyone on this machine may do everything, and no one else may do anything",
                table,
            )
        }
        KeyCommand::Rotate { id, grace, expires } => {
            let ask =
                RotateKey { grace_seconds: Some(seconds(grace)), expires_in_seconds: expires.map(seconds) };
            let doing = |failure: CommandError| failure.doing(format!("rotate key {id}"));
            let found = id_of(&id, tenant, door).await.map_err(doing)?;
            let key = rotate(&found, &ask, door).await.map_err(doing)?;
            show("rotated key", &key, global)
        }
        KeyCommand::Revoke { id } => {
            let doing = |failure: CommandError| failure.doing(format!("revoke key {id}"));
            let id = id_of(&id, tenant, door).await.map_err(doing)?;
            revoke(&id, door).await.map_err(doing)?;
            output::show(global, &json!({ "id": id }), || format!("revoked key {id}"))
        }
    }
}

async fn create(ask: &CreateKey, door: &Door) -> CommandResult<NewKey> {
    match door {
        Door::Server(client) => client.send(Method::POST, &paths::keys(), ask).await,
        Door::Store(engine) => {
            let tenant = maybe_name("tenant", ask.tenant.as_deref()).map_err(Problem::from)?;
            let new = keys::NewKey::of(ask, tenant).map_err(|failure| *failure.0)?;
            Ok(keys::create(engine, new).await.map_err(|failure| *failure.0)?.shown_once())
        }
    }
}

async fn list(limit: Option<usize>, tenant: Option<String>, door: &Door) -> CommandResult<Vec<ApiKey>> {
    match door {
        Door::Server(client) => client.list::<KeyList>(&paths::keys(), &[("tenant", tenant)], limit).await,
        Door::Store(engine) => {
            let keys = keys::list(engine).await.map_err(|failure| *failure.0)?;
            let known = keys.iter().filter(|key| key.revoked_at.is_none()).map(Key::about);
            let known = known.filter(|key| tenant.is_none() || key.tenant == tenant);
            Ok(known.take(limit.unwrap_or(usize::MAX)).collect())
        }
    }
}

/// The id of the key that is meant: an id, or a name that one key alone has.
async fn id_of(given: &str, tenant: Option<String>, door: &Door) -> CommandResult<String> {
    let keys = list(None, tenant, door).await?;
    let named: Vec<&ApiKey> = keys.iter().filter(|key| key.name == given).collect();
    match named.as_slice() {
        _ if keys.iter().any(|key| key.id == given) => Ok(given.to_owned()),
        [one] => Ok(one.id.clone()),
        [] => Ok(given.to_owned()),
        several => {
            let ids = several.iter().map(|key| key.id.as_str()).collect::<Vec<_>>().join(", ");
            Err(CommandError::usage(format!("{} keys have this name; give the id: {ids}", several.len())))
        }
    }
}

async fn rotate(id: &str, ask: &RotateKey, door: &Door) -> CommandResult<NewKey> {
    match door {
        Door::Server(client) => client.send(Method::POST, &paths::key_rotate(id), ask).await,
        Door::Store(engine) => {
            let grace_ms = ask.grace_ms().map_err(Problem::from)?;
            let expires_in_ms = ask.expires_in_seconds.map(|seconds| seconds.saturating_mul(1_000));
            let id = name("id", id).map_err(Problem::from)?;
            let issued = keys::rotate(engine, &id, grace_ms, expires_in_ms).await;
            Ok(issued.map_err(|failure| *failure.0)?.shown_once())
        }
    }
}

async fn revoke(id: &str, door: &Door) -> CommandResult {
    match door {
        Door::Server(client) => {
            client.call::<Value>(Method::DELETE, &paths::key(id), &[], None::<&()>).await.map(|_| ())
        }
        Door::Store(engine) => {
            let id = name("id", id).map_err(Problem::from)?;
            keys::revoke(engine, &id).await.map_err(|failure| *failure.0)?;
            Ok(())
        }
    }
}

/// The key alone goes to stdout, so that a script can take it.
fn show(what: &str, key: &NewKey, global: &GlobalArgs) -> CommandResult {
    if global.json {
        return output::json(key);
    }
    let about = &key.about;
    let whose =
        about.tenant.as_ref().map_or_else(|| "all tenants".to_owned(), |tenant| format!("tenant {tenant}"));
    output::note(format!(
        "{what} {} ({:?}, role {}, {whose}); keep it now, it is not shown again:",
        about.id,
        about.name,
        word(about.role)
    ));
    output::line(key.key.reveal())
}

fn table(keys: &[ApiKey]) -> String {
    let now_ms = wall_ms();
    let until = |time: Timestamp| match StoreTime::from(time).0.saturating_sub(now_ms) {
        0 => "expired".to_owned(),
        ms => format!("in {}", duration_ms(ms)),
    };
    let row = |key: &ApiKey| {
        [
            key.id.clone(),
            key.name.clone(),
            word(key.role).to_owned(),
            key.tenant.clone().unwrap_or_else(|| "(all)".to_owned()),
            if key.only.is_empty() { "(all)".to_owned() } else { limits(key) },
            ago(key.created_at, now_ms),
            or_dash(key.rotated_at.map(|at| ago(at, now_ms))),
            key.expires_at.map_or_else(|| "never".to_owned(), until),
        ]
    };
    let headings = ["ID", "NAME", "ROLE", "TENANT", "ONLY", "CREATED", "ROTATED", "EXPIRES"];
    output::table(headings, &[], keys.iter().map(row).collect())
}

fn seconds(time: Duration) -> u64 {
    time.as_secs()
}
