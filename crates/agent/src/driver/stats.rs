//! What workers say about their work, reported with the leases that they work under.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Map, Value};
use solehold_api::{
    batch::{Batch, RenewItem},
    paths,
};
use solehold_client::Http;
use uuid::Uuid;

/// Most leases in one request.
const ITEMS_MAX: usize = 500;
/// About the most bytes in one request: the server takes twice as much.
const BYTES_MAX: usize = 512 << 10;
/// The most that is reported of one lease: the server keeps twice as much.
const STATS_BYTES_MAX: usize = 32 << 10;

/// What was last reported of the work under each lease: the same is not reported again.
#[derive(Debug, Default)]
pub struct Reported(BTreeMap<Uuid, Map<String, Value>>);

impl Reported {
    /// Reports what is new. What gets lost on the way is reported again when it has changed.
    pub fn report(&mut self, http: &Arc<Http>, stats: Vec<(Uuid, Map<String, Value>)>) {
        let stats: BTreeMap<Uuid, Map<String, Value>> = stats.into_iter().collect();
        let is_new = |(lease, stats): &(&Uuid, &Map<String, Value>)| self.0.get(lease) != Some(stats);
        let news: Vec<_> = stats.iter().filter(is_new).collect();
        for items in requests(&news) {
            let http = http.clone();
            tokio::spawn(async move {
                match http.post(paths::batch_renew(), &Batch { items }).await {
                    Ok(Ok(())) => {}
                    Ok(Err(refusal)) => tracing::debug!(%refusal, "cannot report worker stats"),
                    Err(error) => tracing::debug!(%error, "cannot report worker stats"),
                }
            });
        }
        self.0 = stats;
    }
}

fn requests(news: &[(&Uuid, &Map<String, Value>)]) -> Vec<Vec<RenewItem>> {
    let mut requests = Vec::<Vec<RenewItem>>::new();
    let mut bytes = BYTES_MAX;
    for (lease, stats) in news {
        let size = serde_json::to_vec(stats).map_or(usize::MAX, |text| text.len());
        if size > STATS_BYTES_MAX {
            tracing::debug!(%lease, size, "worker stats are too large; not reported");
            continue;
        }
        if bytes + size > BYTES_MAX || requests.last().is_some_and(|last| last.len() >= ITEMS_MAX) {
            requests.push(Vec::new());
            bytes = 0;
        }
        bytes += size;
        let stats = Some(stats.iter().map(|(name, value)| (name.clone(), value.clone())).collect());
        let item = RenewItem { lease_id: Some(**lease), stats, ..Default::default() };
        requests.last_mut().expect("one was just made").push(item);
    }
    requests
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn requests_are_bounded_in_items_and_bytes() {
        let of = |value: Value| Map::from_iter([("x".to_owned(), value)]);
        let lease = Uuid::from_u128;
        let small = of(json!(1));
        let leases: Vec<Uuid> = (0..1_200).map(lease).collect();
        let news: Vec<_> = leases.iter().map(|lease| (lease, &small)).collect();
        let sizes: Vec<usize> = requests(&news).iter().map(Vec::len).collect();
        assert_eq!(sizes, [500, 500, 200]);
        let large = of(json!("x".repeat(30 << 10)));
        let larger = of(json!("x".repeat(40 << 10)));
        let news: Vec<_> =
            leases[..40].iter().map(|lease| (lease, &large)).chain([(&leases[40], &larger)]).collect();
        let sizes: Vec<usize> = requests(&news).iter().map(Vec::len).collect();
        assert_eq!((sizes.iter().sum::<usize>(), sizes.len()), (40, 3), "{sizes:?}");
        assert!(requests(&[]).is_empty());
    }
}
