// A member of a group, a copier in transactions, or an admin: kafkajs, in one process for each.
// tests/support/foreign/processes.py has the other end, and says what each prints.
'use strict';

const [modules, what, servers, ...rest] = process.argv.slice(2);
const { Kafka, PartitionAssigners, logLevel } = require(`${modules}/kafkajs`);

const SESSION_MS = 2000;
const retry = { initialRetryTime: 100, maxRetryTime: 1000, retries: 30 };
const kafka = new Kafka({ brokers: [servers], logLevel: logLevel.ERROR, retry });
const say = (...words) => console.log(words.join(' '));

async function consumer(groupId, topic, run) {
  const made = kafka.consumer({
    groupId,
    sessionTimeout: SESSION_MS,
    rebalanceTimeout: 2 * SESSION_MS,
    heartbeatInterval: 300,
    maxWaitTimeInMs: 50,
    partitionAssigners: [PartitionAssigners.roundRobin],
    readUncommitted: false,
  });
  made.on(made.events.GROUP_JOIN, ({ payload }) => {
    say('holds', ...(payload.memberAssignment[topic] || []).sort((a, b) => a - b));
  });
  const start = async () => {
    await made.connect();
    await made.run({ autoCommit: false, ...run(made) });
  };
  // kafkajs stops for good if a commit is the first to be told that the member is gone.
  made.on(made.events.CRASH, ({ payload: { restart } }) => restart || start());
  await made.subscribe({ topic, fromBeginning: true });
  process.stdin.resume().on('end', () => made.disconnect().then(() => process.exit(0)));
  await start();
}

const member = (group, topic) =>
  consumer(group, topic, (made) => ({
    eachBatch: async ({ batch, heartbeat }) => {
      for (const { offset, value } of batch.messages) say('read', batch.partition, offset, value);
      const next = String(BigInt(batch.lastOffset()) + 1n);
      await made.commitOffsets([{ topic, partition: batch.partition, offset: next }]);
      await heartbeat();
    },
  }));

async function copier(group, from, to, transactionalId) {
  const producer = kafka.producer({ transactionalId, maxInFlightRequests: 1, idempotent: true });
  await producer.connect();
  let copied = 0;
  await consumer(group, from, () => ({
    eachBatch: async ({ batch: { messages, partition }, resolveOffset, heartbeat, isRunning, isStale }) => {
      for (let i = 0; i < messages.length && isRunning() && !isStale(); i += 20) {
        const some = messages.slice(i, i + 20);
        const last = some[some.length - 1].offset;
        const transaction = await producer.transaction();
        try {
          await transaction.send({ topic: to, messages: some.map(({ value }) => ({ value, partition })) });
          await transaction.sendOffsets({
            consumerGroupId: group,
            topics: [{ topic: from, partitions: [{ partition, offset: String(BigInt(last) + 1n) }] }],
          });
          await transaction.commit();
        } catch (e) {
          await transaction.abort();
          throw e;
        }
        resolveOffset(last);
        copied += some.length;
        say('copied', copied);
        await heartbeat();
      }
    },
    eachBatchAutoResolve: false,
  }));
}

async function admin(topic, group) {
  const made = kafka.admin();
  await made.connect();
  await made.createTopics({ topics: [{ topic: `${topic}-new`, numPartitions: 3 }], waitForLeaders: true });
  const { topics } = await made.fetchTopicMetadata({ topics: [`${topic}-new`] });
  say('partitions', topics[0].partitions.length);
  const { groups } = await made.describeGroups([group]);
  say('group', groups[0].state, groups[0].members.length);
  await made.fetchTopicOffsets(topic); // else it does not know who has the partition
  await made.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '3' }] });
  const offsets = await made.fetchTopicOffsets(topic);
  say('start', offsets.find(({ partition }) => partition === 0).low);
  await made.disconnect();
}

({ member, copy: copier, admin })[what](...rest).catch((e) => {
  console.error(e);
  process.exit(1);
});
