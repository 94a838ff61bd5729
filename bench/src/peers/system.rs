//! The systems that stand side by side.

use clap::ValueEnum;

/// A server, and the way in which it is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum System {
    /// Ours on its own disk, through our own client: all tasks share it, and it coalesces
    Embedded,
    /// Ours on its own disk, one HTTP request per operation, one connection per task
    EmbeddedHttp,
    /// Ours on PostgreSQL, through our own client
    Postgres,
    /// Ours on PostgreSQL, one HTTP request per operation, one connection per task
    PostgresHttp,
    /// Redis, append-only file synced before each answer, one multiplexed connection
    Redis,
    /// etcd over gRPC, one lease per lock, one multiplexed connection
    Etcd,
    /// etcd over gRPC, all locks under one lease, one multiplexed connection
    EtcdSession,
    /// The hand-written SQL on the same PostgreSQL, one connection per task
    Sql,
    /// The hand-written SQL behind our HTTP layer, one HTTP connection per task, 32 to PostgreSQL
    SqlHttp,
}

impl System {
    /// What it is called in tables and plots.
    pub fn title(self) -> &'static str {
        match self {
            Self::Embedded => "solehold embedded, own client",
            Self::EmbeddedHttp => "solehold embedded, plain HTTP",
            Self::Postgres => "solehold on PostgreSQL, own client",
            Self::PostgresHttp => "solehold on PostgreSQL, plain HTTP",
            Self::Redis => "Redis, appendfsync always",
            Self::Etcd => "etcd, one lease per lock",
            Self::EtcdSession => "etcd, one lease for all locks",
            Self::Sql => "hand-written SQL",
            Self::SqlHttp => "hand-written SQL behind HTTP",
        }
    }

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::EmbeddedHttp => "embedded-http",
            Self::Postgres => "postgres",
            Self::PostgresHttp => "postgres-http",
            Self::Redis => "redis",
            Self::Etcd => "etcd",
            Self::EtcdSession => "etcd-session",
            Self::Sql => "sql",
            Self::SqlHttp => "sql-http",
        }
    }

    pub fn is_ours(self) -> bool {
        matches!(self, Self::Embedded | Self::EmbeddedHttp | Self::Postgres | Self::PostgresHttp)
    }

    /// Whether it keeps its data in PostgreSQL.
    pub fn is_on_postgres(self) -> bool {
        matches!(self, Self::Postgres | Self::PostgresHttp | Self::Sql | Self::SqlHttp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_command_line() {
        for system in System::value_variants() {
            assert_eq!(System::from_str(system.name(), false), Ok(*system));
        }
    }
}
