import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Produce NAMESRV BROKER LINE COUNT BIG: every ordinary way of sending, to topics of its own.
 *
 * Topics: plain-LINE and order-LINE, made by the admin interface, and auto-LINE, which the first
 * send makes. COUNT scales the small messages, BIG is the number of bodies of nearly 4 MiB.
 */
public final class Produce {
    private static final int TIMEOUT_MS = 20_000;
    /** As large as a default broker takes, with room for the record's other fields. */
    private static final int BIG_BODY = 4 * 1024 * 1024 - 64 * 1024;
    private static final String[] TAGS = {"TagA", "TagB", "TagC", null};

    private final String line;
    private final int count;
    private final Random random = new Random(7);
    private final DefaultMQProducer producer;
    private final DefaultMQProducer fast;

    private Produce(String namesrv, String line, int count) {
        this.line = line;
        this.count = count;
        producer = producer(namesrv, "producer-" + line);
        fast = producer(namesrv, "fast-" + line);
        fast.setVipChannelEnabled(true); // listenPort - 2
    }

    public static void main(String[] args) throws Exception {
        Produce run = new Produce(args[0], args[2], Integer.parseInt(args[3]));
        Topics.create(args[0], new String[] {args[1]}, 4, "plain-" + run.line, "order-" + run.line);
        run.all(Integer.parseInt(args[4]));
        Report.note("done", "produced");
        System.exit(0);
    }

    private static DefaultMQProducer producer(String namesrv, String group) {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName(group);
        producer.setSendMsgTimeout(TIMEOUT_MS);
        return producer;
    }

    private void all(int big) throws Exception {
        producer.start();
        fast.start();
        for (int n = 0; n < count; n++) {
            sync("sync", producer, small("plain-", "sync", n));
            sync("fast", fast, small("plain-", "fast", n));
        }
        async();
        for (int n = 0; n < count; n++) {
            Message message = small("plain-", "oneway", n);
            producer.sendOneway(message);
            Report.sent("oneway", message, null);
        }
        batch();
        ordered();
        for (int n = 0; n < 4; n++) {
            sync("auto", producer, small("auto-", "auto", n));
            sync("compressed", producer, compressible(n));
        }
        big(big);
        producer.shutdown();
        fast.shutdown();
    }

    private void sync(String kind, DefaultMQProducer producer, Message message) {
        try {
            Report.sent(kind, message, producer.send(message));
        } catch (Exception e) {
            Report.failed(kind, message, e);
        }
    }

    private void async() throws Exception {
        CountDownLatch open = new CountDownLatch(count);
        for (int n = 0; n < count; n++) {
            Message message = small("plain-", "async", n);
            producer.send(message, new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    Report.sent("async", message, result);
                    open.countDown();
                }

                @Override
                public void onException(Throwable e) {
                    Report.failed("async", message, e);
                    open.countDown();
                }
            });
        }
        if (!open.await(TIMEOUT_MS * 2L, TimeUnit.MILLISECONDS)) {
            Report.note("error", open.getCount() + " asynchronous sends were never answered");
        }
    }

    /** A batch has one answer: its messages' ids joined by commas, and the first queue offset. */
    private void batch() throws Exception {
        List<Message> messages = new ArrayList<>();
        for (int n = 0; n < count; n++) {
            messages.add(small("plain-", "batch", n));
        }
        SendResult whole = producer.send(messages);
        String[] ids = whole.getMsgId().split(",");
        String[] offsetIds = whole.getOffsetMsgId().split(",");
        for (int n = 0; n < count; n++) {
            Report.sent("batch", messages.get(n), new SendResult(SendStatus.valueOf(whole.getSendStatus().name()),
                ids[n], offsetIds[n], whole.getMessageQueue(), whole.getQueueOffset() + n));
        }
    }

    /** Steps of four orders, each order on the queue that its number selects. */
    private void ordered() {
        for (int step = 0; step < count; step++) {
            for (int order = 0; order < 4; order++) {
                Message message = small("order-", "ordered-" + order, step);
                try {
                    Report.sent("ordered", message, producer.send(message, this::queueOfOrder, order));
                } catch (Exception e) {
                    Report.failed("ordered", message, e);
                }
            }
        }
    }

    private MessageQueue queueOfOrder(List<MessageQueue> queues, Message message, Object order) {
        return queues.get((Integer) order % queues.size());
    }

    private void big(int number) {
        producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE); // so that all the bytes travel
        for (int n = 0; n < number; n++) {
            byte[] body = new byte[BIG_BODY];
            random.nextBytes(body);
            sync("big", producer, message("plain-", "big", n, body));
        }
    }

    private Message small(String topic, String kind, int n) {
        byte[] body = new byte[1 + random.nextInt(2000)];
        random.nextBytes(body);
        return message(topic, kind, n, body);
    }

    /** Over the client's threshold of 4 KiB, so it compresses: 6 KiB to 380 KiB of text. */
    private Message compressible(int n) {
        String body = ("compressible text " + n + ". ").repeat(300 << 2 * n);
        return message("plain-", "compressed", n, body.getBytes(StandardCharsets.UTF_8));
    }

    private Message message(String topic, String kind, int n, byte[] body) {
        String id = line + "-" + kind + "-" + n;
        Message message = new Message(topic + line, TAGS[n % TAGS.length], body);
        message.setKeys(n % 2 == 0 ? "key-" + id : "key-" + id + " second-" + id);
        message.putUserProperty(Report.ID, id);
        message.putUserProperty("text", "Grüße, 世界 " + n);
        return message;
    }
}
