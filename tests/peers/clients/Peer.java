import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;

/**
 * A member of a group, a copier in transactions, or an admin: Kafka's own clients, in one process for each.
 * tests/support/foreign/processes.py has the other end, and says what each prints.
 */
public class Peer {
    private static final Duration POLL = Duration.ofMillis(100);
    private static volatile boolean stopping;

    public static void main(String[] words) throws Exception {
        if (words[0].equals("admin")) {
            admin(words[1], words[2], words[3]);
            return;
        }
        Thread input = new Thread(() -> {
            try {
                while (System.in.read() >= 0) { }
            } catch (java.io.IOException e) {
                // Its end, too.
            }
            stopping = true;
        });
        input.setDaemon(true);
        input.start();
        if (words[0].equals("member")) {
            member(words[1], words[2], words[3]);
        } else {
            copy(words[1], words[2], words[3], words[4], words[5]);
        }
    }

    private static Properties properties(String servers, String... more) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", servers);
        for (int i = 0; i < more.length; i += 2) {
            properties.put(more[i], more[i + 1]);
        }
        return properties;
    }

    private static KafkaConsumer<byte[], byte[]> consumer(String servers, String group) {
        String bytes = "org.apache.kafka.common.serialization.ByteArrayDeserializer";
        return new KafkaConsumer<>(properties(servers,
            "group.id", group, "auto.offset.reset", "earliest", "enable.auto.commit", "false",
            "session.timeout.ms", "2000", "heartbeat.interval.ms", "300", "max.poll.interval.ms", "4000",
            "max.poll.records", "20", "fetch.max.wait.ms", "50", "isolation.level", "read_committed",
            "partition.assignment.strategy", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
            "key.deserializer", bytes, "value.deserializer", bytes));
    }

    private static void member(String servers, String group, String topic) {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(servers, group)) {
            consumer.subscribe(List.of(topic), new ConsumerRebalanceListener() {
                private final TreeSet<Integer> held = new TreeSet<>();

                @Override
                public void onPartitionsAssigned(Collection<TopicPartition> gained) {
                    gained.forEach(tp -> held.add(tp.partition()));
                    say();
                }

                @Override
                public void onPartitionsRevoked(Collection<TopicPartition> lost) {
                    lost.forEach(tp -> held.remove(tp.partition()));
                    say();
                }

                private void say() {
                    System.out.println("holds " + held.stream().map(String::valueOf).collect(Collectors.joining(" ")));
                }
            });
            while (!stopping) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
                    System.out.println("read " + record.partition() + " " + record.offset() + " "
                        + new String(record.value()));
                }
                try {
                    consumer.commitSync();
                } catch (CommitFailedException | RebalanceInProgressException e) {
                    // Whoever has these partitions next reads the records again.
                }
            }
        }
    }

    private static void copy(String servers, String group, String from, String to, String id) {
        String bytes = "org.apache.kafka.common.serialization.ByteArraySerializer";
        Properties producing = properties(servers, "transactional.id", id, "acks", "all",
            "key.serializer", bytes, "value.serializer", bytes);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(servers, group);
                KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(producing)) {
            producer.initTransactions();
            consumer.subscribe(List.of(from));
            int copied = 0;
            while (!stopping) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(POLL);
                if (records.isEmpty()) {
                    continue;
                }
                producer.beginTransaction();
                Map<TopicPartition, OffsetAndMetadata> next = new HashMap<>();
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    producer.send(new ProducerRecord<>(to, record.partition(), null, record.value()));
                    next.put(new TopicPartition(from, record.partition()), new OffsetAndMetadata(record.offset() + 1));
                }
                producer.sendOffsetsToTransaction(next, consumer.groupMetadata());
                producer.commitTransaction();
                copied += records.count();
                System.out.println("copied " + copied);
            }
        }
    }

    private static void admin(String servers, String topic, String group) throws Exception {
        try (Admin admin = Admin.create(properties(servers))) {
            String fresh = topic + "-new";
            admin.createTopics(List.of(new NewTopic(fresh, 3, (short) 1))).all().get();
            int partitions = admin.describeTopics(List.of(fresh)).values().get(fresh).get().partitions().size();
            System.out.println("partitions " + partitions);
            ConsumerGroupDescription found = admin.describeConsumerGroups(List.of(group)).describedGroups().get(group).get();
            System.out.println("group " + found.state() + " " + found.members().size());
            TopicPartition where = new TopicPartition(topic, 0);
            long start = admin.deleteRecords(Map.of(where, RecordsToDelete.beforeOffset(3)))
                .lowWatermarks().get(where).get().lowWatermark();
            System.out.println("start " + start);
        }
    }
}
