//! Namespaces: what a name is called on the wire.

use rocketmq_protocol::protocol::namespace_util::NamespaceUtil;

/// Adds and removes the namespace of topics and groups.
#[derive(Clone, Debug)]
pub(super) struct Names {
    namespace: Option<String>,
}

impl Names {
    pub(super) fn new(namespace: Option<String>) -> Self {
        Self { namespace }
    }

    pub(super) fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// The name that brokers know.
    pub(super) fn on_the_wire(&self, name: &str) -> String {
        match &self.namespace {
            Some(namespace) => NamespaceUtil::wrap_namespace(namespace.as_str(), name).to_string(),
            None => name.to_owned(),
        }
    }

    /// The name that users know.
    pub(super) fn for_users(&self, name: &str) -> String {
        match &self.namespace {
            Some(namespace) => NamespaceUtil::without_namespace_with_namespace(name, namespace),
            None => name.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_45_a_namespace_is_added_once_and_taken_off_again() {
        let names = Names::new(Some("shop".to_owned()));
        assert_eq!(names.on_the_wire("orders"), "shop%orders");
        assert_eq!(names.on_the_wire("shop%orders"), "shop%orders");
        assert_eq!(names.for_users("shop%orders"), "orders");
        assert_eq!(names.for_users("other%orders"), "other%orders");
        assert_eq!(Names::new(None).on_the_wire("orders"), "orders");
    }
}
