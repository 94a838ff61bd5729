//! Names and the identity of a resource.

use std::{
    cmp::Ordering,
    fmt,
    hash::{BuildHasher, Hash, Hasher},
    sync::{Arc, LazyLock, Mutex},
};

use serde::{Deserialize, Serialize, Serializer};
use uuid::Uuid;

use crate::{
    hashing::KeyHashing,
    limits::{DOCUMENT_BYTES_MAX, NAME_BYTES_MAX},
    time::StoreTime,
};

/// Why a text cannot be a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("is empty; a name has 1 to {NAME_BYTES_MAX} bytes")]
    Empty,
    #[error("has {0} bytes; a name has at most {NAME_BYTES_MAX}")]
    TooLong(usize),
    #[error("has a control character at byte {0}; a name is printable text")]
    Control(usize),
}

/// A name: 1 to 255 bytes of UTF-8 without control characters. Slashes and spaces are allowed; case matters.
///
/// Names that were made lately share their text, so that comparing them mostly compares two addresses. A name keeps the
/// hash of its text: it is looked up many times.
#[derive(Clone, Deserialize)]
#[serde(try_from = "String")]
pub struct Name(
    /// The hash, as [`HASH_BYTES`] characters of ASCII, and the text: one piece of memory.
    Arc<str>,
);

const HASH_BYTES: usize = 8;

/// The tenant of waiting rooms: a text that no client can make a name of.
const ROOMS: &str = "\u{1}rooms";

/// How many names that were made lately are kept, and the longest of them.
const LATELY_NAMES: usize = 1_024;
const LATELY_BYTES_MAX: usize = 32;

impl Name {
    /// A name of this text, whatever it is.
    fn unchecked(text: &str) -> Self {
        Self::hashed(hash_of(text), text)
    }

    fn hashed(hash: u64, text: &str) -> Self {
        let ascii = hash.to_le_bytes();
        let ascii = std::str::from_utf8(&ascii).expect("a hash has seven bits in each byte");
        Self([ascii, text].concat().into())
    }

    /// The hash of its text, which differs from process to process.
    pub(crate) fn text_hash(&self) -> u64 {
        let (hash, _) = self.0.as_bytes().split_first_chunk().expect("every name begins with its hash");
        u64::from_le_bytes(*hash)
    }

    /// The tenant of waiting rooms (rule 15). No name of the wire is equal to it, since it has a control character.
    pub fn rooms() -> Self {
        static SHARED: LazyLock<Name> = LazyLock::new(|| Name::unchecked(ROOMS));
        SHARED.clone()
    }

    /// A name before all others, from which ranges begin.
    pub(crate) fn least() -> Self {
        static SHARED: LazyLock<Name> = LazyLock::new(|| Name::unchecked(""));
        SHARED.clone()
    }

    /// A name that sorts by time.
    pub(crate) fn timed(at: StoreTime, unique: u64) -> Self {
        Self::unchecked(&format!("{:016x}-{unique:016x}", at.0))
    }

    /// A name as a store has kept it: one that was checked once, or [`Self::rooms`].
    pub fn stored(text: impl AsRef<str>) -> Result<Self, NameError> {
        match text.as_ref() {
            ROOMS => Ok(Self::rooms()),
            text => Self::new(text),
        }
    }

    /// Checks a text and makes it a name.
    pub fn new(text: impl AsRef<str>) -> Result<Self, NameError> {
        let text = text.as_ref();
        if text.is_empty() {
            return Err(NameError::Empty);
        }
        if text.len() > NAME_BYTES_MAX {
            return Err(NameError::TooLong(text.len()));
        }
        Self::lately(text, |hash| match text.char_indices().find(|(_, c)| c.is_control()) {
            Some((at, _)) => Err(NameError::Control(at)),
            None => Ok(Self::hashed(hash, text)),
        })
    }

    /// The name of this text, if it was made lately; a new one otherwise. Long ones are mostly ids that come once.
    fn lately(text: &str, new: impl FnOnce(u64) -> Result<Self, NameError>) -> Result<Self, NameError> {
        static LATELY: [Mutex<Option<Name>>; LATELY_NAMES] = [const { Mutex::new(None) }; LATELY_NAMES];
        let hash = hash_of(text);
        if text.len() > LATELY_BYTES_MAX {
            return new(hash);
        }
        let place = hash as usize % LATELY_NAMES;
        let Ok(mut kept) = LATELY[place].lock() else { return new(hash) };
        match &*kept {
            Some(name) if name.as_str() == text => Ok(name.clone()),
            _ => Ok(kept.insert(new(hash)?).clone()),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0[HASH_BYTES..]
    }
}

/// The hash of a text, with seven bits in each byte.
fn hash_of(text: &str) -> u64 {
    KeyHashing.hash_one(text) & 0x7f7f_7f7f_7f7f_7f7f
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl Eq for Name {}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.text_hash());
    }
}

impl Ord for Name {
    fn cmp(&self, other: &Self) -> Ordering {
        if Arc::ptr_eq(&self.0, &other.0) { Ordering::Equal } else { self.as_str().cmp(other.as_str()) }
    }
}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl TryFrom<String> for Name {
    type Error = NameError;
    fn try_from(text: String) -> Result<Self, NameError> {
        Self::stored(text)
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.as_str().into()
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// What a resource is: a tenant's thing of some kind. Site and labels are attributes, not identity.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ResourceKey {
    pub tenant: Name,
    pub kind: Name,
    pub key: Name,
    /// Which of its slots is meant, from 1 on, or 0 for the resource itself (rule 29).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub slot: u32,
}

pub(crate) fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl ResourceKey {
    /// The key of a resource itself.
    pub fn new(tenant: Name, kind: Name, key: Name) -> Self {
        Self { tenant, kind, key, slot: 0 }
    }

    /// The key of one of its slots.
    pub fn of_slot(&self, slot: u32) -> Self {
        Self { slot, ..self.clone() }
    }

    pub fn is_slot(&self) -> bool {
        self.slot > 0
    }

    /// The resource that a slot is of; of a resource, itself.
    pub fn whole(&self) -> Self {
        self.of_slot(0)
    }

    pub fn is_slot_of(&self, whole: &Self) -> bool {
        self.is_slot() && self.key == whole.key && self.kind == whole.kind && self.tenant == whole.tenant
    }

    /// What the ids of its leases begin with. It is stored, and must never change.
    pub fn mark(&self) -> u32 {
        // No name has a NUL in it.
        let parts = [&self.tenant, &self.kind, &self.key].map(Name::as_str);
        xxhash_rust::xxh3::xxh3_64(parts.join("\0").as_bytes()) as u32
    }

    /// A key before all others, from which ranges begin.
    pub(crate) fn least() -> Self {
        let least = Name::least();
        Self::new(least.clone(), least.clone(), least)
    }
}

impl fmt::Display for ResourceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tenant, kind, key, slot } = self;
        match slot {
            0 => write!(f, "{kind}/{key} of tenant {tenant}"),
            slot => write!(f, "slot {slot} of {kind}/{key} of tenant {tenant}"),
        }
    }
}

impl fmt::Debug for ResourceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}/{}", self.tenant, self.kind, self.key)?;
        if self.is_slot() { write!(f, "#{}", self.slot) } else { Ok(()) }
    }
}

/// A holder's name within its tenant.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HolderKey {
    pub tenant: Name,
    pub name: Name,
}

impl HolderKey {
    /// Whether it stands for a replica's waiting room, and for no holder.
    pub fn is_room(&self) -> bool {
        self.tenant.as_str() == ROOMS
    }
}

/// A client's own name for one acquire, so that a repeat is known as a repeat (rule 7).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RequestKey {
    pub resource: ResourceKey,
    pub holder: Name,
    /// The client's name for the request.
    pub request: Name,
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

id! {
    /// One incarnation of a holder.
    SessionId
}
id! {
    /// One grant of one resource.
    LeaseId
}

impl LeaseId {
    /// The id of a grant that is asked for: random but for its beginning, the [mark](ResourceKey::mark) of the
    /// resource. So a store finds the resource of a lease without an index that every grant would have to change.
    pub fn new(key: &ResourceKey, random: Uuid) -> Self {
        let mut bytes = random.into_bytes();
        bytes[..4].copy_from_slice(&key.mark().to_be_bytes());
        Self(uuid::Builder::from_custom_bytes(bytes).into_uuid())
    }

    /// The mark of its resource, if it was made by [`Self::new`].
    pub fn mark(self) -> u32 {
        self.0.as_fields().0
    }
}

/// A text is too large to be kept as a [`Document`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("has {0} bytes; a document has at most {DOCUMENT_BYTES_MAX}")]
pub struct DocumentTooLarge(pub usize);

/// An opaque text that core keeps and hands back without reading it.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Document(Arc<str>);

impl Document {
    /// Checks the size of a text and keeps it.
    pub fn new(text: impl AsRef<str>) -> Result<Self, DocumentTooLarge> {
        let text = text.as_ref();
        match text {
            NOTHING => Ok(Self::default()),
            _ if text.len() > DOCUMENT_BYTES_MAX => Err(DocumentTooLarge(text.len())),
            _ => Ok(Self(text.into())),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What a document says that says nothing. Most do, so that they share it.
const NOTHING: &str = "{}";

impl Default for Document {
    fn default() -> Self {
        static SHARED: LazyLock<Arc<str>> = LazyLock::new(|| NOTHING.into());
        Self(SHARED.clone())
    }
}

impl TryFrom<String> for Document {
    type Error = DocumentTooLarge;
    fn try_from(text: String) -> Result<Self, DocumentTooLarge> {
        Self::new(text)
    }
}

impl From<Document> for String {
    fn from(document: Document) -> Self {
        document.0.as_ref().into()
    }
}

impl Serialize for Document {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl fmt::Debug for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_lease_leads_to_its_resource() {
        let key = |key: &str| {
            ResourceKey::new(
                Name::new("acme").expect("a name"),
                Name::new("job").expect("a name"),
                Name::new(key).expect("a name"),
            )
        };
        // These are stored somewhere.
        assert_eq!((key("a").mark(), key("b").mark()), (1_776_477_200, 2_317_160_157));
        let one = LeaseId::new(&key("a"), Uuid::from_u128(1));
        let other = LeaseId::new(&key("a"), Uuid::from_u128(2));
        assert_eq!((one.mark(), other.mark()), (key("a").mark(), key("a").mark()));
        assert!(one != other && one.0.get_version_num() == 8);
    }

    #[test]
    fn names_are_printable_and_bounded() {
        for good in ["a", "söhne/数/🚦", "with space", &"x".repeat(255), "../..", "%2F"] {
            assert_eq!(Name::new(good).map(String::from), Ok(good.to_owned()));
        }
        assert_eq!(Name::new(""), Err(NameError::Empty));
        assert_eq!(Name::new("x".repeat(256)), Err(NameError::TooLong(256)));
        assert_eq!(Name::new("x".repeat(10_000)), Err(NameError::TooLong(10_000)));
        assert_eq!(Name::new("a\nb"), Err(NameError::Control(1)));
        assert_eq!(Name::new("a\0"), Err(NameError::Control(1)));
        assert_eq!(Name::new(Name::rooms().as_str()), Err(NameError::Control(0)));
        assert_eq!(Name::stored(Name::rooms().as_str()), Ok(Name::rooms()));
    }

    #[test]
    fn a_name_that_was_made_lately_shares_its_text() {
        let name = |text: &str| Name::new(text).expect("a name");
        let shares = |text: &str| Arc::ptr_eq(&name(text).0, &name(text).0);
        // Another test of the same process may make a name for the same place in between.
        assert!((0..100).any(|_| shares("shared-by-many")));
        assert!(!shares(&"x".repeat(LATELY_BYTES_MAX + 1)));
        assert_eq!(name("a").cmp(&name("b")), Ordering::Less);
        assert_eq!(Name::unchecked("a").cmp(&name("a")), Ordering::Equal, "by text, where it is not shared");
    }

    #[test]
    fn documents_are_bounded() {
        assert!(Document::new("x".repeat(DOCUMENT_BYTES_MAX)).is_ok());
        assert_eq!(
            Document::new("x".repeat(DOCUMENT_BYTES_MAX + 1)),
            Err(DocumentTooLarge(DOCUMENT_BYTES_MAX + 1))
        );
    }
}
