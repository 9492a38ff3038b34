import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * What happened, as one JSON object a line on standard output. The checks read nothing else of a
 * client, so every line carries what identifies a message: its ids, its place, its content's hash.
 */
final class Report {
    /** The user property that names a message across producer, brokers and consumers. */
    static final String ID = "interopId";

    private Report() {
    }

    /** The line for a message handed to a producer; `result` is null for a one-way send. */
    static void sent(String kind, Message message, SendResult result) {
        Map<String, Object> line = content("sent", kind, message);
        line.put("msgId", MessageClientIDSetter.getUniqID(message));
        if (result != null) {
            line.put("status", result.getSendStatus().name());
            line.put("offsetMsgId", result.getOffsetMsgId());
            line.put("broker", result.getMessageQueue().getBrokerName());
            line.put("queue", result.getMessageQueue().getQueueId());
            line.put("offset", result.getQueueOffset());
        }
        print(line);
    }

    static void failed(String kind, Message message, Throwable error) {
        Map<String, Object> line = content("failed", kind, message);
        line.put("error", String.valueOf(error));
        print(line);
    }

    /** The line for a message that reached a consumer; `instance` tells members of a group apart. */
    static void consumed(String mode, String instance, MessageExt message) {
        Map<String, Object> line = content("consumed", mode, message);
        line.put("instance", instance);
        line.put("msgId", message.getMsgId());
        line.put("offsetMsgId", message instanceof MessageClientExt ext ? ext.getOffsetMsgId() : null);
        line.put("broker", message.getBrokerName());
        line.put("queue", message.getQueueId());
        line.put("offset", message.getQueueOffset());
        line.put("reconsumed", message.getReconsumeTimes());
        print(line);
    }

    static void note(String event, String text) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("event", event);
        line.put("at", System.currentTimeMillis());
        line.put("text", text);
        print(line);
    }

    private static Map<String, Object> content(String event, String kind, Message message) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("event", event);
        line.put("at", System.currentTimeMillis());
        line.put("kind", kind);
        line.put("id", message.getUserProperty(ID));
        line.put("topic", message.getTopic());
        line.put("tags", message.getTags());
        line.put("keys", message.getKeys());
        line.put("text", message.getUserProperty("text"));
        line.put("size", message.getBody().length);
        line.put("sha256", sha256(message.getBody()));
        return line;
    }

    private static String sha256(byte[] body) {
        try {
            return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(body));
        } catch (java.security.NoSuchAlgorithmException e) {
            throw new IllegalStateException("every Java has SHA-256", e);
        }
    }

    private static synchronized void print(Map<String, Object> line) {
        StringBuilder out = new StringBuilder("{");
        for (Map.Entry<String, Object> field : line.entrySet()) {
            out.append(out.length() > 1 ? "," : "").append(quoted(field.getKey())).append(':');
            Object value = field.getValue();
            out.append(value == null || value instanceof Number ? String.valueOf(value) : quoted(value.toString()));
        }
        byte[] bytes = out.append("}\n").toString().getBytes(StandardCharsets.UTF_8);
        System.out.write(bytes, 0, bytes.length);
        System.out.flush();
    }

    private static String quoted(String text) {
        StringBuilder out = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < ' ') {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        return out.append('"').toString();
    }
}
