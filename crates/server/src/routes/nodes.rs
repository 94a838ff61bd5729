//! Who is there: the live sessions of a tenant, and how each fares.

use axum::{Json, extract::State};
use solehold_api::{
    page::{self, PageCursor, PageQuery},
    problem::Problem,
    sessions::{Node, NodeList},
};
use solehold_core::key::{HolderKey, Name};
use solehold_engine::store::{FoundHolders, HolderQuery};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::convert;
use crate::{
    Context,
    http::{Caller, Failure, Params, Role},
};

pub fn routes() -> OpenApiRouter<Context> {
    OpenApiRouter::new().routes(routes!(list))
}

/// Lists the nodes that live. A page may have fewer than asked for; the last has no `next`.
#[utoipa::path(
    get, path = "/nodes", tag = "sessions", operation_id = "list_nodes", params(PageQuery),
    responses(
        (status = 200, description = "A page of nodes", body = NodeList),
        (status = 400, description = "A parameter is wrong", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn list(
    State(context): State<Context>,
    caller: Caller,
    Params(query): Params<PageQuery>,
) -> Result<Json<NodeList>, Failure> {
    caller.must_be(Role::Reader)?;
    let tenant = caller.tenant(query.tenant.as_deref())?;
    let limit = page::size(query.limit)?;
    let (found, next) = holders(&context, &tenant, false, query.cursor.as_ref(), limit).await?;
    let (state, now) = (&found.loaded.state, found.loaded.now);
    let sessions = found.keys.iter().filter_map(|key| state.session(state.holder(key)?.session?));
    let nodes = sessions.filter(|session| session.is_live(now)).map(|session| Node::of(session, now));
    Ok(Json(NodeList { nodes: nodes.collect(), next, cursor: convert::cursor(found.loaded.cursor) }))
}

/// A page of a tenant's holders, and where the next begins.
pub async fn holders(
    context: &Context,
    tenant: &Name,
    registered: bool,
    cursor: Option<&PageCursor>,
    limit: usize,
) -> Result<(FoundHolders, Option<PageCursor>), Failure> {
    let after = cursor.map(|cursor| after(tenant, cursor)).transpose()?;
    let query = HolderQuery { tenant: Some(tenant.clone()), registered, after, limit };
    let found = context.engine().find_holders(&query).await?;
    let last = found.keys.last().filter(|_| found.more);
    let next = last.map(|key| PageCursor(vec![key.name.to_string()]));
    Ok((found, next))
}

fn after(tenant: &Name, cursor: &PageCursor) -> Result<HolderKey, Failure> {
    let [name] = cursor.0.as_slice() else { return Err(convert::odd_cursor()) };
    let name = Name::new(name).map_err(|_| convert::odd_cursor())?;
    Ok(HolderKey { tenant: tenant.clone(), name })
}
