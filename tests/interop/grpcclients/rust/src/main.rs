//! The official Rust client of RocketMQ 5, as a program with the operations of tests/interop/grpcclient.py.
//!
//! The client has no push consumer. In its place a task receives, and acknowledges what it does not refuse.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::engine::general_purpose::STANDARD;
use base64::Engine;
use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::error::ClientError;
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{Message, MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use serde_json::{json, Value};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::task::JoinHandle;

const BATCH: i32 = 32;
const INVISIBLE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(200);

type Noted = Arc<Mutex<Vec<Value>>>;

enum Client {
    Producing(Producer, Noted),
    Pushing(JoinHandle<()>, Noted),
    Receiving(SimpleConsumer, String, String),
}

#[derive(Default)]
struct Program {
    clients: HashMap<u64, Client>,
    messages: HashMap<String, MessageView>,
    last: u64,
}

fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_string()
}

fn milliseconds(value: &Value, key: &str) -> Duration {
    Duration::from_millis(value[key].as_u64().unwrap_or_default())
}

fn options(arguments: &Value) -> ClientOption {
    let mut options = ClientOption::default();
    options.set_access_url(text(arguments, "endpoints"));
    options.set_enable_tls(arguments["tls"] == true);
    options.set_long_polling_timeout(milliseconds(arguments, "waitMs").max(Duration::from_secs(1)));
    if !text(arguments, "user").is_empty() {
        options.set_access_key(text(arguments, "user"));
        options.set_secret_key(text(arguments, "password"));
    }
    options
}

fn message(outgoing: &Value, is_transaction: bool) -> Result<impl Message, ClientError> {
    let body = STANDARD.decode(text(outgoing, "body")).expect("a body is base64");
    let mut builder = MessageBuilder::builder().set_topic(text(outgoing, "topic")).set_body(body);
    if !text(outgoing, "tag").is_empty() {
        builder = builder.set_tag(text(outgoing, "tag"));
    }
    let keys = outgoing["keys"].as_array().expect("keys are a list");
    builder = builder.set_keys(keys.iter().map(|key| key.as_str().unwrap_or_default()).collect());
    let properties = outgoing["properties"].as_object().expect("properties are a map");
    let pairs = properties.iter().map(|(key, value)| (key, value.as_str().unwrap_or_default()));
    builder = builder.set_properties(pairs.collect::<HashMap<_, _>>());
    if !text(outgoing, "group").is_empty() {
        builder = builder.set_message_group(text(outgoing, "group"));
    }
    let deliver_ms = outgoing["deliverMs"].as_i64().unwrap_or_default();
    if deliver_ms != 0 {
        builder = builder.set_delivery_timestamp(deliver_ms / 1000);
    }
    if is_transaction {
        builder = builder.enable_transaction();
    }
    builder.build()
}

fn described(message: &MessageView) -> Value {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
    json!({
        "id": message.message_id(),
        "topic": message.topic(),
        "body": STANDARD.encode(message.body()),
        "tag": message.tag().unwrap_or_default(),
        "keys": message.keys(),
        "properties": message.properties(),
        "group": message.message_group().unwrap_or_default(),
        "attempt": message.delivery_attempt(),
        "corrupted": false,
        "receivedMs": now.as_millis() as u64,
    })
}

async fn consumer(arguments: &Value) -> Result<(SimpleConsumer, String, String), ClientError> {
    let topics = arguments["topics"].as_object().expect("topics are a map");
    let (topic, tags) = topics.iter().next().expect("there is a topic");
    let mut option = SimpleConsumerOption::default();
    option.set_consumer_group(text(arguments, "group"));
    option.set_topics(vec![topic.as_str()]);
    let mut consumer = SimpleConsumer::new(option, options(arguments))?;
    consumer.start().await?;
    Ok((consumer, topic.clone(), tags.as_str().unwrap_or("*").to_string()))
}

async fn push(consumer: SimpleConsumer, topic: String, tags: String, received: Noted) {
    let expression = FilterExpression::new(FilterType::Tag, tags);
    let mut times: HashMap<String, u64> = HashMap::new();
    loop {
        let found = match consumer.receive_with(&topic, &expression, BATCH, INVISIBLE).await {
            Ok(found) => found,
            Err(error) => {
                eprintln!("{error:#?}");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        for message in found {
            received.lock().unwrap().push(described(&message));
            let count = times.entry(message.message_id().to_string()).or_default();
            *count += 1;
            let failures = message.properties().get("failures").and_then(|it| it.parse().ok()).unwrap_or(0);
            if *count <= failures {
                break; // the others come again after it, if they have an order
            }
            if let Err(error) = consumer.ack(&message).await {
                eprintln!("{error:#?}");
            }
        }
    }
}

impl Program {
    fn opened(&mut self, client: Client) -> Value {
        self.last += 1;
        self.clients.insert(self.last, client);
        json!(self.last)
    }

    async fn run(&mut self, op: &str, arguments: &Value) -> Result<Value, ClientError> {
        let handle = arguments["handle"].as_u64().unwrap_or_default();
        match op {
            "producer" => self.producer(arguments).await,
            "simple" => {
                let (consumer, topic, tags) = consumer(arguments).await?;
                Ok(self.opened(Client::Receiving(consumer, topic, tags)))
            }
            "push" => {
                let (consumer, topic, tags) = consumer(arguments).await?;
                let received = Noted::default();
                let task = tokio::spawn(push(consumer, topic, tags, received.clone()));
                Ok(self.opened(Client::Pushing(task, received)))
            }
            "close" => {
                match self.clients.remove(&handle) {
                    Some(Client::Producing(client, _)) => drop(tokio::spawn(client.shutdown())),
                    Some(Client::Receiving(client, _, _)) => drop(tokio::spawn(client.shutdown())),
                    Some(Client::Pushing(task, _)) => task.abort(),
                    None => {}
                }
                Ok(Value::Null)
            }
            _ => match self.clients.get(&handle).expect("the client is open") {
                Client::Producing(_, checked) if op == "checked" => Ok(json!(*checked.lock().unwrap())),
                Client::Producing(producer, _) => send(producer, op, arguments).await,
                Client::Pushing(_, received) => Ok(json!(*received.lock().unwrap())),
                Client::Receiving(consumer, _, _) if op == "ack" => {
                    let message = self.messages.get(&text(arguments, "id")).expect("the message was received");
                    consumer.ack(message).await.map(|_| Value::Null)
                }
                Client::Receiving(consumer, topic, tags) => {
                    let expression = FilterExpression::new(FilterType::Tag, tags);
                    let count = arguments["count"].as_i64().unwrap_or_default() as i32;
                    let invisible = milliseconds(arguments, "invisibleMs");
                    let found = consumer.receive_with(topic, &expression, count, invisible).await?;
                    let all: Vec<Value> = found.iter().map(described).collect();
                    self.messages.extend(found.into_iter().map(|it| (it.message_id().to_string(), it)));
                    Ok(json!(all))
                }
            },
        }
    }

    async fn producer(&mut self, arguments: &Value) -> Result<Value, ClientError> {
        let checked = Noted::default();
        let noting = checked.clone();
        let topics = arguments["topics"].as_array().expect("topics are a list");
        let mut option = ProducerOption::default();
        option.set_topics(topics.iter().map(|it| it.as_str().unwrap_or_default()).collect());
        let check = move |_: String, message: MessageView| {
            noting.lock().unwrap().push(json!(message.message_id()));
            match message.properties().get("check").map(String::as_str) {
                Some("ROLLBACK") => TransactionResolution::ROLLBACK,
                _ => TransactionResolution::COMMIT,
            }
        };
        let mut producer = Producer::new_transaction_producer(option, options(arguments), Box::new(check))?;
        producer.start().await?;
        Ok(self.opened(Client::Producing(producer, checked)))
    }
}

async fn send(producer: &Producer, op: &str, arguments: &Value) -> Result<Value, ClientError> {
    if op == "transact" {
        let transaction = producer.send_transaction_message(message(&arguments["message"], true)?).await?;
        let id = transaction.message_id().to_string();
        match arguments["decision"].as_str() {
            Some("COMMIT") => transaction.commit().await?,
            Some("ROLLBACK") => transaction.rollback().await?,
            _ => {}
        }
        return Ok(json!({"id": id, "recall": ""}));
    }
    let mut receipts = Vec::new();
    for outgoing in arguments["messages"].as_array().expect("messages are a list") {
        let receipt = producer.send(message(outgoing, false)?).await?;
        receipts.push(json!({"id": receipt.message_id(), "recall": ""}));
    }
    Ok(json!(receipts))
}

/// The proxy's code, of which the client keeps the name.
fn code_of(error: &ClientError) -> i32 {
    match error.context().iter().find(|(key, _)| *key == "code").map(|(_, name)| name.as_str()) {
        Some("UNAUTHORIZED") => 40100,
        Some("TOPIC_NOT_FOUND") => 40402,
        Some("INVALID_RECEIPT_HANDLE") => 40013,
        _ => 0,
    }
}

#[tokio::main]
async fn main() {
    let mut program = Program::default();
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let mut out = tokio::io::stdout();
    while let Ok(Some(line)) = lines.next_line().await {
        let request: Value = serde_json::from_str(&line).expect("a request is JSON");
        let answer = match program.run(&text(&request, "op"), &request["arguments"]).await {
            Ok(result) => json!({"result": result}),
            Err(error) => {
                let kind = format!("{:?}", error.kind());
                json!({"error": {"type": kind, "code": code_of(&error), "text": error.to_string()}})
            }
        };
        out.write_all(format!("{answer}\n").as_bytes()).await.expect("the test reads");
        out.flush().await.expect("the test reads");
    }
    std::process::exit(0); // clients end with it
}
