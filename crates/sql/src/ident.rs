//! Names of tables and columns, checked and quoted: nothing but a name gets into a statement.

use crate::{Error, limits::IDENTIFIER_BYTES_MAX};

/// A column, quoted.
pub(crate) fn column(name: &str) -> Result<String, Error> {
    check("column", name)?;
    Ok(quoted(name))
}

/// A table, `name` or `schema.name`, quoted.
pub(crate) fn table(name: &str) -> Result<String, Error> {
    let parts: Vec<&str> = name.split('.').collect();
    if parts.len() > 2 {
        return Err(Error::invalid("table", name, "name it as `table` or `schema.table`"));
    }
    for part in &parts {
        check("table", part)?;
    }
    Ok(parts.into_iter().map(quoted).collect::<Vec<_>>().join("."))
}

/// A channel or other name by itself, quoted.
pub(crate) fn name(what: &'static str, name: &str) -> Result<String, Error> {
    check(what, name)?;
    Ok(quoted(name))
}

fn check(what: &'static str, name: &str) -> Result<(), Error> {
    let mut characters = name.chars();
    let starts = characters.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    let goes_on = characters.all(|c| c.is_ascii_alphanumeric() || c == '_');
    if starts && goes_on && name.len() <= IDENTIFIER_BYTES_MAX {
        return Ok(());
    }
    let wanted =
        format!("use a letter or `_`, then letters, digits or `_`, at most {IDENTIFIER_BYTES_MAX} bytes");
    Err(Error::invalid(what, name, wanted))
}

fn quoted(name: &str) -> String {
    format!("\"{name}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted() {
        assert_eq!(column("status").unwrap(), "\"status\"");
        assert_eq!(table("app.payment_requests").unwrap(), "\"app\".\"payment_requests\"");
        assert_eq!(table("jobs").unwrap(), "\"jobs\"");
    }

    #[test]
    fn anything_but_a_name_is_refused() {
        let long = "a".repeat(IDENTIFIER_BYTES_MAX + 1);
        for bad in ["", "1st", "a b", "a\"b", "a;DROP TABLE x", "a--", "é", "a.b", long.as_str()] {
            let error = column(bad).unwrap_err().to_string();
            assert!(error.contains("column") && error.contains("letters"), "{error}");
        }
        for bad in ["", ".", "a.", ".b", "a.b.c", "a.b; --"] {
            assert!(table(bad).is_err(), "{bad}");
        }
    }
}
