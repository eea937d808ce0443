import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;

/**
 * Kafka's own clients from 0.9 to 0.11, told by lines what to do; tests/support/foreign/old_java.py has the other end.
 *
 * produce TOPIC PARTITION CODEC COUNT, followed by COUNT lines KEY VALUE TIMESTAMP [NAME=VALUE ...]: answers OFFSET ...
 * consume TOPIC PARTITION OFFSET COUNT: answers COUNT lines OFFSET KEY VALUE TIMESTAMP [NAME=VALUE ...]
 *
 * The first argument is where the brokers are; others are properties, NAME=VALUE.
 *
 * Bytes are x and hexadecimal digits, null is -. What a version has no call for is found by reflection: one
 * source serves them all.
 */
public class OldClient {
    private static final long PATIENCE_MS = 20_000;

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            TopicPartition where = new TopicPartition(words[1], Integer.parseInt(words[2]));
            if (words[0].equals("produce")) {
                out.println(produce(arguments, where, words[3], Integer.parseInt(words[4]), in));
            } else {
                consume(arguments, where, Long.parseLong(words[3]), Integer.parseInt(words[4]), out);
            }
            out.flush();
        }
    }

    private static String produce(String[] arguments, TopicPartition where, String codec, int count, BufferedReader in)
            throws Exception {
        Properties properties = properties(arguments, "serializer", "ByteArraySerializer");
        properties.put("compression.type", codec);
        properties.put("acks", "all");
        properties.put("linger.ms", "50");
        properties.put("batch.size", "8192");
        StringBuilder offsets = new StringBuilder();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(properties)) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                sent.add(producer.send(record(where, in.readLine().split(" "))));
            }
            for (Future<RecordMetadata> one : sent) {
                offsets.append(one.get(PATIENCE_MS, TimeUnit.MILLISECONDS).offset()).append(' ');
            }
        }
        return offsets.toString().trim();
    }

    private static void consume(String[] arguments, TopicPartition where, long offset, int count, PrintStream out)
            throws Exception {
        Properties properties = properties(arguments, "deserializer", "ByteArrayDeserializer");
        properties.put("enable.auto.commit", "false");
        properties.put("check.crcs", "true");
        properties.put("auto.offset.reset", "none");
        properties.put("max.partition.fetch.bytes", "16384");
        long end = System.currentTimeMillis() + PATIENCE_MS;
        int found = 0;
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(properties)) {
            consumer.assign(Collections.singletonList(where));
            consumer.seek(where, offset);
            while (found < count && System.currentTimeMillis() < end) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(500)) {
                    if (found++ < count) {
                        out.println(said(record));
                    }
                }
            }
        }
        if (found < count) {
            throw new IllegalStateException(where + ": " + found + " records instead of " + count);
        }
    }

    private static Properties properties(String[] arguments, String kind, String serializer) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        for (int i = 1; i < arguments.length; i++) {
            String[] given = arguments[i].split("=", 2);
            properties.put(given[0], given[1]);
        }
        properties.put("key." + kind, "org.apache.kafka.common.serialization." + serializer);
        properties.put("value." + kind, "org.apache.kafka.common.serialization." + serializer);
        return properties;
    }

    @SuppressWarnings("unchecked")
    private static ProducerRecord<byte[], byte[]> record(TopicPartition where, String[] words) throws Exception {
        byte[] key = bytes(words[0]);
        byte[] value = bytes(words[1]);
        ProducerRecord<byte[], byte[]> record;
        try {
            record = (ProducerRecord<byte[], byte[]>) ProducerRecord.class
                .getConstructor(String.class, Integer.class, Long.class, Object.class, Object.class)
                .newInstance(where.topic(), where.partition(), Long.valueOf(words[2]), key, value);
        } catch (NoSuchMethodException noTimes) {
            record = new ProducerRecord<>(where.topic(), where.partition(), key, value);
        }
        for (int i = 3; i < words.length; i++) {
            String[] header = words[i].split("=");
            Object headers = ProducerRecord.class.getMethod("headers").invoke(record);
            Class.forName("org.apache.kafka.common.header.Headers").getMethod("add", String.class, byte[].class)
                .invoke(headers, new String(bytes(header[0]), "UTF-8"), bytes(header[1]));
        }
        return record;
    }

    private static String said(ConsumerRecord<byte[], byte[]> record) throws Exception {
        StringBuilder line = new StringBuilder();
        line.append(record.offset()).append(' ').append(text(record.key())).append(' ').append(text(record.value()));
        try {
            line.append(' ').append(ConsumerRecord.class.getMethod("timestamp").invoke(record));
        } catch (NoSuchMethodException noTimes) {
            line.append(" -1");
        }
        try {
            Class<?> type = Class.forName("org.apache.kafka.common.header.Header");
            for (Object header : (Iterable<?>) ConsumerRecord.class.getMethod("headers").invoke(record)) {
                String name = (String) type.getMethod("key").invoke(header);
                byte[] value = (byte[]) type.getMethod("value").invoke(header);
                line.append(' ').append(text(name.getBytes("UTF-8"))).append('=').append(text(value));
            }
        } catch (NoSuchMethodException | ClassNotFoundException noHeaders) {
            return line.toString();
        }
        return line.toString();
    }

    private static byte[] bytes(String word) {
        if (word.equals("-")) {
            return null;
        }
        byte[] found = new byte[(word.length() - 1) / 2];
        for (int i = 0; i < found.length; i++) {
            found[i] = (byte) Integer.parseInt(word.substring(2 * i + 1, 2 * i + 3), 16);
        }
        return found;
    }

    private static String text(byte[] bytes) {
        if (bytes == null) {
            return "-";
        }
        StringBuilder word = new StringBuilder("x");
        for (byte one : bytes) {
            word.append(String.format("%02x", one));
        }
        return word.toString();
    }
}
