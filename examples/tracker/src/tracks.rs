//! The objects in a scene and the ids that they are followed by.
//!
//! There is no camera here: where the objects of a scene are is computed from the time, the same for every tracker, as
//! if all looked at one scene. What is real is the tracker's part: it knows nothing but positions, matches them with
//! the tracks that it has by distance, and gives a new id to an object that fits none.

use serde::{Deserialize, Serialize};

/// Objects in each scene.
pub const OBJECTS: usize = 5;
/// An object that is further from where its track was is another one, in metres. They move 2 m/s at most, and are 10 m
/// apart.
const MATCH_WITHIN: f64 = 4.0;

/// Where something is, in metres.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Position {
    /// To the east.
    pub x: f64,
    /// To the north.
    pub y: f64,
}

impl Position {
    fn distance(self, other: Self) -> f64 {
        (self.x - other.x).hypot(self.y - other.y)
    }
}

/// Where the objects of every scene are at a time, in milliseconds since the epoch. Each goes round in a circle of its
/// own.
pub fn seen_at(unix_ms: u64) -> [Position; OBJECTS] {
    std::array::from_fn(|object| {
        let turn = (unix_ms % 6_000) as f64 / 6_000.0 * std::f64::consts::TAU;
        let angle = turn + object as f64;
        Position { x: object as f64 * 10.0 + angle.cos(), y: angle.sin() }
    })
}

/// An object that is followed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Track {
    /// Its id, which consumers know it by.
    pub id: String,
    /// Where it was last.
    pub at: Position,
}

/// The objects of a scene that are followed: what its next tracker is given.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Tracks {
    /// The number of the next new track.
    next: u64,
    /// What is followed.
    pub tracks: Vec<Track>,
}

impl Tracks {
    /// Follows what is seen now, and tells whether there are new ids. `scene` and `token` make them unique: no other
    /// tracker of the scene has that token.
    pub fn follow(&mut self, scene: &str, token: u64, seen: &[Position]) -> bool {
        let known = self.next;
        let mut before = std::mem::take(&mut self.tracks);
        for at in seen {
            let near = |track: &Track| track.at.distance(*at);
            let nearest = (0..before.len()).min_by(|a, b| near(&before[*a]).total_cmp(&near(&before[*b])));
            let id = match nearest.filter(|nearest| near(&before[*nearest]) < MATCH_WITHIN) {
                Some(nearest) => before.swap_remove(nearest).id,
                None => {
                    self.next += 1;
                    format!("{scene}-{token}-{}", self.next)
                }
            };
            self.tracks.push(Track { id, at: *at });
        }
        self.next > known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_stay_with_their_objects_and_survive_a_change_of_tracker() {
        let mut first = Tracks::default();
        let is_new: Vec<bool> = (0..60).map(|step| first.follow("s", 7, &seen_at(step * 100))).collect();
        assert_eq!(is_new.iter().position(|is_new| !is_new), Some(1));
        let ids: Vec<_> = first.tracks.iter().map(|track| track.id.clone()).collect();
        assert_eq!(ids, ["s-7-1", "s-7-2", "s-7-3", "s-7-4", "s-7-5"]);
        // What the next one is given is half a second old.
        let text = serde_json::to_string(&first).expect("JSON");
        let mut next: Tracks = serde_json::from_str(&text).expect("the same");
        next.follow("s", 8, &seen_at(6_400));
        assert_eq!(next.tracks.iter().map(|track| track.id.clone()).collect::<Vec<_>>(), ids);
        // One that knows nothing gives new ids, which cannot be those of another.
        let mut ignorant = Tracks::default();
        ignorant.follow("s", 9, &seen_at(6_400));
        assert!(ignorant.tracks.iter().all(|track| track.id.starts_with("s-9-")));
    }
}
