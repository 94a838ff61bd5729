//! Answers in a few words, for the log.

use solehold_client::{
    AuthorityError, LeaseId, RefusalReason,
    authority::{Beat, Completion, GrantedLease, HeldLease, Node, StateDocument},
    news::News,
};
use solehold_core::{outcome::Answer, time::Token};

pub trait Brief {
    fn brief(&self) -> String;
}

fn held(held: &HeldLease) -> String {
    format!("{} token {}", held.resource, held.token)
}

impl Brief for Beat {
    fn brief(&self) -> String {
        let leases: Vec<String> = self.leases.iter().map(held).collect();
        let asked = if self.hand_overs.is_empty() { "" } else { ", asked to hand over" };
        format!("{:?} left, holds [{}]{asked}", self.ttl_left, leases.join(", "))
    }
}

impl Brief for GrantedLease {
    fn brief(&self) -> String {
        let confirm = if self.confirm_within.is_some() { ", to be confirmed" } else { "" };
        format!("{}, {:?} left{confirm}", held(&self.held), self.ttl_left)
    }
}

impl Brief for Completion {
    fn brief(&self) -> String {
        match self {
            Self::Held(granted) => granted.brief(),
            Self::Released => "released".to_owned(),
        }
    }
}

impl Brief for () {
    fn brief(&self) -> String {
        "done".to_owned()
    }
}

impl Brief for LeaseId {
    fn brief(&self) -> String {
        "asked".to_owned()
    }
}

impl Brief for StateDocument {
    fn brief(&self) -> String {
        format!("state of token {}", self.token)
    }
}

impl Brief for Token {
    fn brief(&self) -> String {
        format!("token {self}")
    }
}

impl Brief for News {
    fn brief(&self) -> String {
        format!("{} sessions have news", self.sessions.len())
    }
}

impl Brief for Answer {
    fn brief(&self) -> String {
        "answered".to_owned()
    }
}

impl Brief for RefusalReason {
    fn brief(&self) -> String {
        format!("refused, {}", self.code.as_str())
    }
}

impl Brief for String {
    fn brief(&self) -> String {
        self.clone()
    }
}

impl Brief for AuthorityError {
    fn brief(&self) -> String {
        self.to_string()
    }
}

impl<T: Brief> Brief for Option<T> {
    fn brief(&self) -> String {
        self.as_ref().map_or_else(|| "nothing".to_owned(), Brief::brief)
    }
}

impl<T: Brief> Brief for Vec<T> {
    fn brief(&self) -> String {
        self.iter().map(Brief::brief).collect::<Vec<_>>().join("; ")
    }
}

impl Brief for Node {
    fn brief(&self) -> String {
        "a node".to_owned()
    }
}

impl<T: Brief, E: Brief> Brief for Result<T, E> {
    fn brief(&self) -> String {
        match self {
            Ok(done) => done.brief(),
            Err(error) => error.brief(),
        }
    }
}
