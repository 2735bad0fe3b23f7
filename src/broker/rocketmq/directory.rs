//! Which brokers serve a topic, and where they are.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, Instant},
};

use rocketmq_model::common::{constant::PermName, topic::TopicValidator};
use rocketmq_protocol::{
    code::{request_code::RequestCode, response_code::ResponseCode},
    protocol::{
        body::broker_body::cluster_info::ClusterInfo,
        header::client_request_header::GetRouteInfoRequestHeader,
        route::{route_data_view::BrokerData, topic_route_data::TopicRouteData},
    },
};
use tokio::sync::Mutex;

use super::link::{Link, Refusal, is_success};
use crate::broker::BrokerError;

/// The id that a broker's master has.
const MASTER: u64 = 0;

/// How many queues the brokers give a topic that they create themselves: the stock clients' value.
pub(super) const NEW_TOPIC_QUEUES: u32 = 4;

/// How soon the route of a topic that did not exist is asked for again.
const PROVISIONAL_FOR: Duration = Duration::from_secs(1);

/// How long a broker that left is expected back, and asked for often.
const GONE_FOR_GOOD: Duration = Duration::from_secs(600);

/// How long one look-up answers for all callers that failed at the same time.
const REFRESHED_JUST_NOW: Duration = Duration::from_millis(200);

/// One queue that takes messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Queue {
    pub(super) broker: Arc<str>,
    pub(super) address: Arc<str>,
    pub(super) id: i32,
}

/// Where the messages of one topic go.
#[derive(Debug)]
pub(super) struct Route {
    /// Ordered by broker name and queue id, as the stock clients do, so that all clients hash a key to the same queue.
    pub(super) queues: Vec<Queue>,
    /// Until when this is the route of a topic that does not exist yet, taken from the brokers' default topic.
    provisional_until: Option<Instant>,
}

/// A broker's cluster and master.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    cluster: String,
    master: Arc<str>,
}

#[derive(Default)]
struct Known {
    routes: HashMap<String, Arc<Route>>,
    brokers: BTreeMap<String, Place>,
    /// Brokers that were there and are not now, and since when: they stop, or start again.
    gone: HashMap<String, Instant>,
}

/// What the name servers said.
pub(super) struct Directory {
    link: Arc<Link>,
    /// The registered topics, as brokers know them.
    registered: Vec<String>,
    known: RwLock<Known>,
    /// Held while the name server is asked, so that many callers ask once; when it last answered.
    asking: Mutex<Option<Instant>>,
}

impl Directory {
    pub(super) fn new(link: Arc<Link>, registered: Vec<String>) -> Self {
        Self { link, registered, known: RwLock::default(), asking: Mutex::default() }
    }

    /// The route of a topic: the one at hand, else the name server's.
    pub(super) async fn route(&self, topic: &str) -> Result<Arc<Route>, BrokerError> {
        if let Some(route) = self.route_at_hand(topic) {
            return Ok(route);
        }
        let _one_at_a_time = self.asking.lock().await;
        if let Some(route) = self.route_at_hand(topic) {
            return Ok(route);
        }
        self.ask_for_route(topic).await
    }

    fn route_at_hand(&self, topic: &str) -> Option<Arc<Route>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known
            .routes
            .get(topic)
            .filter(|route| route.provisional_until.is_none_or(|until| Instant::now() < until))
            .cloned()
    }

    /// Asks for everything again: brokers and the routes of all topics in use.
    pub(super) async fn refresh(&self) -> Result<(), BrokerError> {
        let mut last = self.asking.lock().await;
        if last.is_some_and(|at| at.elapsed() < REFRESHED_JUST_NOW) {
            return Ok(());
        }
        self.ask_for_brokers().await?;
        let mut topics: BTreeSet<String> = self.registered.iter().cloned().collect();
        topics.extend(self.known.read().unwrap_or_else(PoisonError::into_inner).routes.keys().cloned());
        for topic in topics {
            if let Err(error) = self.ask_for_route(&topic).await
                && self.registered.contains(&topic)
            {
                return Err(error);
            }
        }
        *last = Some(Instant::now());
        Ok(())
    }

    /// The address of a broker's master, as far as known.
    pub(super) fn address_of(&self, broker: &str) -> Option<Arc<str>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.brokers.get(broker).map(|place| place.master.clone())
    }

    /// The masters that serve the registered topics: broker name and address.
    pub(super) fn serving(&self) -> BTreeMap<String, Arc<str>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        self.registered
            .iter()
            .filter_map(|topic| known.routes.get(topic))
            .flat_map(|route| &route.queues)
            .map(|queue| (queue.broker.to_string(), queue.address.clone()))
            .collect()
    }

    /// The masters that may ask about halves: all of the clusters that serve the registered topics, since a topic can
    /// grow to another broker of its cluster at any time.
    pub(super) fn askers(&self) -> BTreeMap<String, Arc<str>> {
        let mut askers = self.serving();
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let clusters: BTreeSet<&str> =
            askers.keys().filter_map(|broker| known.brokers.get(broker)).map(|place| place.cluster.as_str()).collect();
        let of_clusters = known.brokers.iter().filter(|(_, place)| clusters.contains(place.cluster.as_str()));
        askers.extend(of_clusters.map(|(broker, place)| (broker.clone(), place.master.clone())));
        askers
    }

    async fn ask_for_brokers(&self) -> Result<(), BrokerError> {
        let doing = "asking for the brokers of the cluster";
        let answer =
            self.link.ask_name_server(doing, || self.link.bare_command(RequestCode::GetBrokerClusterInfo)).await?;
        if !is_success(&answer) {
            return Err(BrokerError::new(format!("{doing} failed"), Refusal::from(&answer)));
        }
        let body = answer.body().map(AsRef::as_ref).unwrap_or_default();
        let info = ClusterInfo::decode(body).map_err(|error| BrokerError::new(format!("{doing} failed"), error))?;
        let brokers: BTreeMap<String, Place> =
            info.broker_addr_table.unwrap_or_default().values().filter_map(place).collect();
        if brokers.is_empty() {
            return Err(BrokerError::message(format!(
                "no broker has registered with the name server {}: start one with namesrvAddr set to it",
                self.link.name_servers()
            )));
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut known.brokers, brokers);
        let Known { brokers, gone, .. } = &mut *known;
        for name in before.into_keys().filter(|name| !brokers.contains_key(name)) {
            gone.entry(name).or_insert_with(Instant::now);
        }
        gone.retain(|name, since| !brokers.contains_key(name) && since.elapsed() < GONE_FOR_GOOD);
        Ok(())
    }

    /// Whether a broker is away that may come back: it asks as soon as it does, and must know this producer by then.
    pub(super) fn awaits_a_broker(&self) -> bool {
        !self.known.read().unwrap_or_else(PoisonError::into_inner).gone.is_empty()
    }

    async fn ask_for_route(&self, topic: &str) -> Result<Arc<Route>, BrokerError> {
        let route = match self.look_up(topic).await? {
            Some(data) => self.take_in(&data, u32::MAX, None),
            None => match self.look_up(TopicValidator::AUTO_CREATE_TOPIC_KEY_TOPIC).await? {
                Some(data) => self.take_in(&data, NEW_TOPIC_QUEUES, Some(Instant::now() + PROVISIONAL_FOR)),
                None => {
                    return Err(BrokerError::message(format!(
                        "topic {topic} does not exist on name server {}, and no broker creates topics by itself: \
                         create it with `mqadmin updateTopic -t {topic} -c <cluster>`",
                        self.link.name_servers()
                    )));
                }
            },
        };
        if route.queues.is_empty() {
            return Err(BrokerError::message(format!(
                "topic {topic} has no queue that can be written to: give it write permission (`mqadmin \
                 updateTopicPerm -t {topic} -p 6`), or start the master of its broker"
            )));
        }
        let route = Arc::new(route);
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.routes.insert(topic.to_owned(), route.clone());
        Ok(route)
    }

    async fn look_up(&self, topic: &str) -> Result<Option<TopicRouteData>, BrokerError> {
        let doing = format!("asking for the route of topic {topic}");
        let command = || {
            let header = GetRouteInfoRequestHeader::new(topic, Some(true));
            self.link.command(RequestCode::GetRouteinfoByTopic, header)
        };
        let answer = self.link.ask_name_server(&doing, command).await?;
        if answer.code() == ResponseCode::TopicNotExist.to_i32() {
            return Ok(None);
        }
        if !is_success(&answer) {
            return Err(BrokerError::new(format!("{doing} failed"), Refusal::from(&answer)));
        }
        let body = answer.body().map(AsRef::as_ref).unwrap_or_default();
        TopicRouteData::decode(body).map(Some).map_err(|error| BrokerError::new(format!("{doing} failed"), error))
    }

    fn take_in(&self, data: &TopicRouteData, queues_max: u32, provisional_until: Option<Instant>) -> Route {
        let places: BTreeMap<String, Place> = data.broker_datas.iter().filter_map(place).collect();
        let mut queues = Vec::new();
        let mut by_broker: Vec<_> = data.queue_datas.iter().collect();
        by_broker.sort_by(|a, b| a.broker_name().cmp(b.broker_name()));
        for of_broker in by_broker {
            let Some(place) = places.get(of_broker.broker_name().as_str()) else { continue };
            if !PermName::is_writeable(of_broker.perm()) {
                continue;
            }
            let broker: Arc<str> = of_broker.broker_name().as_str().into();
            let count = of_broker.write_queue_nums().min(queues_max);
            queues.extend((0..count).filter_map(|id| {
                let id = i32::try_from(id).ok()?;
                Some(Queue { broker: broker.clone(), address: place.master.clone(), id })
            }));
        }
        self.known.write().unwrap_or_else(PoisonError::into_inner).brokers.extend(places);
        Route { queues, provisional_until }
    }
}

/// A broker without a master cannot take halves, so it has no place.
fn place(broker: &BrokerData) -> Option<(String, Place)> {
    let addresses = broker.broker_addrs();
    let acting = || addresses.iter().min_by_key(|(id, _)| **id).map(|(_, address)| address);
    let master =
        addresses.get(&MASTER).or_else(|| if broker.enable_acting_master() { acting() } else { None })?.as_str();
    let place = Place { cluster: broker.cluster().to_owned(), master: master.into() };
    Some((broker.broker_name().to_string(), place))
}
