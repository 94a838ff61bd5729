//! Nodes: the active sessions of a tenant, and what each reports about itself.

use serde::Deserialize;
use solehold_api::{
    limits::{PAGE_SIZE_MAX, ROUTED_NODES_MAX},
    page::{self, PageCursor, PageQuery},
    paths,
    problem::{ErrorCode, Problem},
    sessions::{KeyRoute, Node, NodeList},
};
use solehold_core::{
    key::{HolderKey, Name},
    route,
};
use solehold_engine::store::{HolderPage, HolderQuery};

use crate::{
    http::{ApiError, Caller, Context, Json, NamePath, Params, Reply, role},
    routes::{
        resource_view::{cursor_after, names_in, resource_key},
        watch::wire_cursor,
    },
};

routes!["sessions": list_nodes, route_key];

/// Lists the active nodes. A page may have fewer items than `limit`; the last has no `next`.
#[utoipa::path(
    get, path = paths::NODES, params(PageQuery),
    responses((status = 200, description = "A page of nodes", body = NodeList))
)]
async fn list_nodes(caller: Caller<role::Reader>, Params(query): Params<PageQuery>) -> Reply<NodeList> {
    let tenant = caller.tenant(query.tenant.as_deref())?;
    let limit = page::size(query.limit)?;
    let (found, next) = holders(caller.context(), &tenant, false, query.cursor.as_ref(), limit).await?;
    let nodes = live(&found).collect();
    Ok(Json(NodeList { nodes, next, cursor: wire_cursor(found.loaded.cursor) }))
}

/// The active nodes among those found.
fn live(found: &HolderPage) -> impl Iterator<Item = Node> {
    let state = &found.loaded.state;
    let now = found.loaded.now;
    let sessions = found.keys.iter().filter_map(|key| state.session(state.holder(key)?.session?));
    sessions.filter(move |session| session.is_live(now)).map(move |session| Node::of(session, now))
}

/// Which nodes a key is routed among.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
struct RouteQuery {
    /// Those whose metrics name this group; all, if not given.
    group: Option<String>,
    /// The tenant, for a key that may access several.
    tenant: Option<String>,
}

/// Returns the active node that should serve a key: the same for every caller that sees the same nodes. When a node
/// leaves, only its own keys move; a node that joins takes only its share.
#[utoipa::path(
    get, path = paths::ROUTE,
    params(("kind" = String, Path, description = "The kind of key"), ("key" = String, Path, description = "The key; a slash within it is `%2F`"), RouteQuery),
    responses(
        (status = 200, description = "The node", body = KeyRoute),
        (status = 404, description = "No active node could serve it"),
    )
)]
async fn route_key(
    caller: Caller<role::Reader>,
    NamePath((kind, key)): NamePath<(String, String)>,
    Params(query): Params<RouteQuery>,
) -> Reply<KeyRoute> {
    let tenant = caller.tenant(query.tenant.as_deref())?;
    let of = resource_key(tenant.clone(), &kind, "key", &key)?;
    let mut nodes = all_live(caller.context(), &tenant).await?;
    nodes.retain(|node| query.group.is_none() || node.group == query.group);
    let chosen = route::route(of.kind.as_str(), of.key.as_str(), nodes.iter().map(Node::candidate));
    let chosen = chosen.and_then(|chosen| nodes.iter().find(|node| node.node_id == chosen.name));
    let group = query.group.map(|group| format!(" of the group {group}")).unwrap_or_default();
    let nobody =
        || Problem::new(ErrorCode::NotFound, format!("no active node{group} could serve {kind}/{key}"));
    let node = chosen.cloned().ok_or_else(nobody)?;
    Ok(Json(KeyRoute { kind, key, node }))
}

/// All active nodes of a tenant.
async fn all_live(context: &Context, tenant: &Name) -> Result<Vec<Node>, ApiError> {
    let mut nodes = Vec::new();
    let mut cursor = None;
    loop {
        let (found, next) = holders(context, tenant, false, cursor.as_ref(), PAGE_SIZE_MAX).await?;
        nodes.extend(live(&found));
        if nodes.len() > ROUTED_NODES_MAX {
            let problem = Problem::new(
                ErrorCode::QuotaExceeded,
                format!(
                    "more than {ROUTED_NODES_MAX} nodes are active: a key is routed among at most that many"
                ),
            );
            return Err(problem.limit("routed_nodes", ROUTED_NODES_MAX as u64).into());
        }
        match next {
            Some(next) => cursor = Some(next),
            None => return Ok(nodes),
        }
    }
}

/// A page of a tenant's holders, or of all tenants', and where the next begins.
pub async fn holders(
    context: &Context,
    tenant: impl Into<Option<&Name>>,
    registered: bool,
    cursor: Option<&PageCursor>,
    limit: usize,
) -> Result<(HolderPage, Option<PageCursor>), ApiError> {
    let tenant = tenant.into();
    let after = match cursor {
        Some(cursor) => {
            let (tenant, [name]) = names_in(cursor, tenant)?;
            Some(HolderKey { tenant, name })
        }
        None => None,
    };
    let query = HolderQuery { tenant: tenant.cloned(), name: None, registered, after, limit };
    let found = context.engine().find_holders(&query).await?;
    let last = found.keys.last().filter(|_| found.more);
    let next = last.map(|key| cursor_after(tenant, &key.tenant, &[&key.name]));
    Ok((found, next))
}
