//! SQL text with its arguments, and rows as plain values: what crosses the port to the databases.

use bytes::Bytes;

/// Which SQL a database speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// PostgreSQL 13 or newer.
    Postgres,
    /// MySQL 8.0.1 or MariaDB 10.6, or newer.
    MySql,
    /// SQLite 3.
    Sqlite,
}

/// One bound value.
#[derive(Clone, Debug)]
pub enum Arg {
    /// Text, or NULL.
    Text(Option<String>),
    /// Bytes.
    Bytes(Bytes),
    /// A number.
    Int(i64),
}

impl From<&str> for Arg {
    fn from(text: &str) -> Self {
        Self::Text(Some(text.to_owned()))
    }
}

impl From<Option<&str>> for Arg {
    fn from(text: Option<&str>) -> Self {
        Self::Text(text.map(ToOwned::to_owned))
    }
}

impl From<i64> for Arg {
    fn from(number: i64) -> Self {
        Self::Int(number)
    }
}

impl From<Bytes> for Arg {
    fn from(bytes: Bytes) -> Self {
        Self::Bytes(bytes)
    }
}

/// One prepared statement and what is bound to it. Text is only ever the SDK's own; all data is bound.
#[derive(Debug)]
pub struct Statement {
    dialect: Dialect,
    sql: String,
    args: Vec<Arg>,
}

impl Statement {
    pub(crate) fn new(dialect: Dialect, sql: &str) -> Self {
        Self { dialect, sql: sql.to_owned(), args: Vec::new() }
    }

    pub(crate) fn sql(mut self, sql: &str) -> Self {
        self.sql.push_str(sql);
        self
    }

    pub(crate) fn bind(mut self, arg: impl Into<Arg>) -> Self {
        self.args.push(arg.into());
        match self.dialect {
            Dialect::Postgres => self.sql.push_str(&format!("${}", self.args.len())),
            Dialect::MySql | Dialect::Sqlite => self.sql.push('?'),
        }
        self
    }

    /// `(?, ?, ..)`, for `IN`.
    pub(crate) fn bind_list<'a>(self, texts: impl IntoIterator<Item = &'a str>) -> Self {
        let mut this = self.sql("(");
        for (position, text) in texts.into_iter().enumerate() {
            this = this.sql(if position == 0 { "" } else { ", " }).bind(text);
        }
        this.sql(")")
    }

    /// The database's clock in microseconds since the epoch, whatever the session's time zone.
    pub(crate) fn now(self) -> Self {
        let now = match self.dialect {
            Dialect::Postgres => "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
            Dialect::MySql => "TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6))",
            Dialect::Sqlite => "CAST(unixepoch('subsec') * 1000000 AS INTEGER)",
        };
        self.sql(now)
    }

    pub(crate) fn into_parts(self) -> (String, Vec<Arg>) {
        (self.sql, self.args)
    }
}

/// The type of one result column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// Text in any of the database's text or binary types.
    Text,
    /// A 64-bit number.
    Int,
}

/// One value of a result row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Text, or NULL.
    Text(Option<String>),
    /// A number, or NULL.
    Int(Option<i64>),
}

/// One result row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row(pub(crate) Vec<Value>);

impl Row {
    /// The text of a column; empty for NULL, which no text column that the SDK reads can be.
    pub(crate) fn text(&self, column: usize) -> &str {
        match &self.0[column] {
            Value::Text(text) => text.as_deref().unwrap_or_default(),
            Value::Int(_) => unreachable!("column {column} was asked for as a number"),
        }
    }

    /// The number of a column, or NULL.
    pub(crate) fn int(&self, column: usize) -> Option<i64> {
        match &self.0[column] {
            Value::Int(number) => *number,
            Value::Text(_) => unreachable!("column {column} was asked for as text"),
        }
    }
}
