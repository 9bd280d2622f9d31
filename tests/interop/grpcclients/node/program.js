// The official Node.js client of RocketMQ 5, as a program with the operations of tests/interop/grpcclient.py.
'use strict';

const readline = require('node:readline');
const {
  ConsumeResult, FilterExpression, LitePushConsumerImpl, OffsetOption, Producer, PushConsumer, SimpleConsumer,
} = require('rocketmq-client-nodejs');
const { TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const clients = new Map();
const noted = new Map();
const messages = new Map();
let last = 0;

function configuration(it) {
  return {
    endpoints: it.endpoints,
    namespace: '',
    sslEnabled: it.tls,
    sessionCredentials: it.user ? { accessKey: it.user, accessSecret: it.password } : undefined,
  };
}

function outgoing(it) {
  return {
    topic: it.topic,
    body: Buffer.from(it.body, 'base64'),
    tag: it.tag || undefined,
    keys: it.keys,
    properties: new Map(Object.entries(it.properties)),
    messageGroup: it.group || undefined,
    liteTopic: it.lite || undefined,
    deliveryTimestamp: it.deliverMs ? new Date(it.deliverMs) : undefined,
  };
}

function described(message) {
  return {
    id: message.messageId,
    topic: message.topic,
    body: message.body.toString('base64'),
    tag: message.tag || '',
    keys: message.keys,
    properties: Object.fromEntries(message.properties),
    group: message.messageGroup || '',
    lite: message.liteTopic || '',
    attempt: message.deliveryAttempt,
    corrupted: message.corrupted === true,
    receivedMs: Date.now(),
  };
}

async function started(client, notes) {
  await client.startup();
  last += 1;
  clients.set(last, client);
  noted.set(last, notes);
  return last;
}

function receipt(it) {
  return { id: it.messageId, recall: it.recallHandle || '' };
}

function subscriptions(it) {
  return new Map(Object.entries(it.topics).map(([topic, tags]) => [topic, new FilterExpression(tags)]));
}

function listener(received) {
  const times = new Map();
  return {
    async consume(message) {
      received.push(described(message));
      const count = (times.get(message.messageId) || 0) + 1;
      times.set(message.messageId, count);
      const failures = Number(message.properties.get('failures') || '0');
      return count <= failures ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
    },
  };
}

const operations = {
  producer(it) {
    const checked = [];
    const checker = {
      async check(message) {
        checked.push(message.messageId);
        return TransactionResolution[message.properties.get('check') || 'COMMIT'];
      },
    };
    return started(new Producer({ ...configuration(it), topics: it.topics, checker }), checked);
  },
  async send(it) {
    const receipts = [];
    for (const message of it.messages) {
      receipts.push(receipt(await clients.get(it.handle).send(outgoing(message))));
    }
    return receipts;
  },
  async transact(it) {
    const producer = clients.get(it.handle);
    const transaction = producer.beginTransaction();
    const sent = receipt(await producer.send(outgoing(it.message), transaction));
    if (it.decision === 'COMMIT') {
      await transaction.commit();
    } else if (it.decision === 'ROLLBACK') {
      await transaction.rollback();
    }
    return sent;
  },
  async recall(it) {
    return (await clients.get(it.handle).recallMessage(it.topic, it.recall)).messageId;
  },
  checked: it => noted.get(it.handle),
  push(it) {
    const received = [];
    const options = {
      ...configuration(it),
      consumerGroup: it.group,
      subscriptions: subscriptions(it),
      messageListener: listener(received),
    };
    return started(new PushConsumer(options), received);
  },
  litePush(it) {
    const received = [];
    const options = {
      ...configuration(it), consumerGroup: it.group, bindTopic: it.topic, messageListener: listener(received),
    };
    return started(new LitePushConsumerImpl(options), received);
  },
  async subscribe(it) {
    const begins = it.again ? OffsetOption.ofTailN(it.again) : OffsetOption.LAST_OFFSET;
    await clients.get(it.handle).subscribeLite(it.lite, begins);
    return null;
  },
  async unsubscribe(it) {
    await clients.get(it.handle).unsubscribeLite(it.lite);
    return null;
  },
  subscribeAll: () => null, // it does when it starts
  subscribed: it => [...clients.get(it.handle).getLiteTopicSet()],
  received: it => noted.get(it.handle),
  simple(it) {
    const options = {
      ...configuration(it), consumerGroup: it.group, subscriptions: subscriptions(it), awaitDuration: it.waitMs,
    };
    return started(new SimpleConsumer(options));
  },
  async receive(it) {
    const received = await clients.get(it.handle).receive(it.count, it.invisibleMs);
    received.forEach(message => messages.set(message.messageId, message));
    return received.map(described);
  },
  async ack(it) {
    await clients.get(it.handle).ack(messages.get(it.id));
    return null;
  },
  async change(it) {
    await clients.get(it.handle).changeInvisibleDuration(messages.get(it.id), it.invisibleMs);
    return null;
  },
  close(it) { // in the background, which takes a client some seconds
    clients.get(it.handle).shutdown().catch(error => console.error(error));
    clients.delete(it.handle);
    return null;
  },
};

// The proxy's code, which a failed start has as a cause.
function codeOf(error) {
  for (let cause = error; cause; cause = cause.cause) {
    const found = /response-code=(\d+)/.exec(cause.message);
    if (found) {
      return Number(found[1]);
    }
  }
  return 0;
}

// A client that was shut down may open its telemetry stream again, without a listener for its errors.
process.on('uncaughtException', error => console.error(error));

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const request = JSON.parse(line);
    let answer;
    try {
      answer = { result: await operations[request.op](request.arguments) };
    } catch (error) {
      console.error(error);
      answer = { error: { type: error.name, code: codeOf(error), text: String(error.message) } };
    }
    process.stdout.write(`${JSON.stringify(answer)}\n`);
  }
  process.exit(0);
}

main();
