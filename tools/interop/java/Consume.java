import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Consume NAMESRV LINE SECONDS PRODUCERS MODE=N ...: every ordinary way of consuming, side by side.
 *
 * PRODUCERS names the lines whose topics are read, joined by commas. Each MODE ends when N different
 * deliveries have been seen or SECONDS have passed; the checks decide which of the two is right.
 */
@SuppressWarnings("deprecation") // the pull consumer, which 4.9 applications use
public final class Consume {
    /** How long a finished mode goes on, so that deliveries too many are seen too. */
    private static final long SURPLUS_MS = 2_000;

    /**
     * Offsets are committed every second once a client is ten seconds old, and at its shutdown. A Java broker
     * that is handed a group's first offsets for a topic by several threads at once may lose some (each makes
     * the topic's table), so every client lives long enough to commit twice.
     */
    private static final int COMMIT_MS = 1_000;
    private static final long COMMITS_FROM_MS = 10_000 + 2 * COMMIT_MS;

    private static volatile boolean going = true;

    private final String namesrv;
    private final String line;
    private final String[] producers;
    private final Map<String, Set<String>> seen = new ConcurrentHashMap<>();
    private final List<AutoCloseable> running = new ArrayList<>();
    private final List<Thread> threads = new ArrayList<>();

    private Consume(String namesrv, String line, String[] producers) {
        this.namesrv = namesrv;
        this.line = line;
        this.producers = producers;
    }

    public static void main(String[] args) throws Exception {
        Consume run = new Consume(args[0], args[1], args[3].split(","));
        long end = System.currentTimeMillis() + Long.parseLong(args[2]) * 1000;
        run.startAll();
        long committed = System.currentTimeMillis() + COMMITS_FROM_MS;
        for (int i = 4; i < args.length; i++) {
            String[] mode = args[i].split("=");
            run.await(mode[0], Integer.parseInt(mode[1]), end);
        }
        Thread.sleep(Math.max(SURPLUS_MS, committed - System.currentTimeMillis()));
        going = false;
        for (Thread thread : run.threads) {
            thread.join(SURPLUS_MS);
        }
        for (AutoCloseable consumer : run.running) {
            consumer.close();
        }
        Report.note("done", "consumed");
        System.exit(0);
    }

    private void startAll() throws Exception {
        push("cluster", "1", "*", "CLUSTERING", "plain-", "auto-");
        push("cluster", "2", "*", "CLUSTERING", "plain-", "auto-");
        push("broadcast", "1", "*", "BROADCASTING", "plain-");
        push("broadcast", "2", "*", "BROADCASTING", "plain-");
        push("tags", "1", "TagA || TagB", "CLUSTERING", "plain-");
        push("orderly", "1", "*", "CLUSTERING", "order-");
        thread("lite", this::lite);
        thread("pull", this::pull);
    }

    private void await(String mode, int deliveries, long end) throws InterruptedException {
        while (seen(mode).size() < deliveries && System.currentTimeMillis() < end) {
            Thread.sleep(50);
        }
    }

    private Set<String> seen(String mode) {
        return seen.computeIfAbsent(mode, m -> ConcurrentHashMap.newKeySet());
    }

    private void record(String mode, String instance, MessageExt message) {
        Report.consumed(mode, instance, message);
        String id = message.getUserProperty(Report.ID) + "#" + message.getReconsumeTimes();
        seen(mode).add("broadcast".equals(mode) ? id + "@" + instance : id);
    }

    private void push(String mode, String instance, String tags, String model, String... topics) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(mode + "-" + line);
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(mode + instance);
        // The defaults of 30 s are for clusters that stand. Here the retry topics have just been made, and a
        // heartbeat that came while its client was still connecting would be made up for half a minute later.
        consumer.setPollNameServerInterval(2_000);
        consumer.setHeartbeatBrokerInterval(2_000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPersistConsumerOffsetInterval(COMMIT_MS);
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(4);
        consumer.setMaxReconsumeTimes("tags".equals(mode) ? 1 : -1);
        // The enum's package differs between the lines; its name need not be written here.
        consumer.setMessageModel(Enum.valueOf(consumer.getMessageModel().getDeclaringClass(), model));
        for (String topic : topics) {
            for (String producer : producers) {
                consumer.subscribe(topic + producer, tags);
            }
        }
        if ("orderly".equals(mode)) {
            consumer.registerMessageListener((MessageListenerOrderly)
                (messages, context) -> orderly(mode, instance, messages));
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently)
                (messages, context) -> concurrently(mode, instance, messages, context));
        }
        consumer.start();
        running.add(consumer::shutdown);
    }

    private ConsumeOrderlyStatus orderly(String mode, String instance, List<MessageExt> messages) {
        messages.forEach(message -> record(mode, instance, message));
        return ConsumeOrderlyStatus.SUCCESS;
    }

    private ConsumeConcurrentlyStatus concurrently(String mode, String instance, List<MessageExt> messages,
        ConsumeConcurrentlyContext context) {
        messages.forEach(message -> record(mode, instance, message));
        if ("tags".equals(mode) && messages.stream().anyMatch(this::refuses)) {
            context.setDelayLevelWhenNextConsume(1); // one second
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        }
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    }

    /** Our own line's first message is refused once; its second one always, so it ends as a dead letter. */
    private boolean refuses(MessageExt message) {
        String id = message.getUserProperty(Report.ID);
        return id.equals(line + "-sync-0") && message.getReconsumeTimes() == 0 || id.equals(line + "-sync-1");
    }

    private void lite() throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("lite-" + line);
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("lite");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPersistConsumerOffsetInterval(COMMIT_MS);
        consumer.setAutoCommit(false);
        for (String producer : producers) {
            consumer.subscribe("plain-" + producer, "*");
        }
        consumer.start();
        while (going) {
            for (MessageExt message : consumer.poll(500)) {
                record("lite", "1", message);
            }
            consumer.commitSync();
        }
        consumer.shutdown();
    }

    private void pull() throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("pull-" + line);
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName("pull");
        consumer.start();
        for (String producer : producers) {
            for (MessageQueue queue : consumer.fetchSubscribeMessageQueues("order-" + producer)) {
                pullQueue(consumer, queue);
            }
        }
        consumer.shutdown();
    }

    private void pullQueue(DefaultMQPullConsumer consumer, MessageQueue queue) throws Exception {
        long end = consumer.maxOffset(queue);
        long next = consumer.minOffset(queue);
        while (next < end) {
            PullResult result = consumer.pull(queue, "*", next, 32);
            if (result.getPullStatus() != PullStatus.FOUND) {
                throw new IllegalStateException(queue + " at " + next + " of " + end + ": " + result);
            }
            result.getMsgFoundList().forEach(message -> record("pull", "1", message));
            next = result.getNextBeginOffset();
        }
    }

    private interface Work {
        void run() throws Exception;
    }

    private void thread(String name, Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (Exception e) {
                Report.note("error", name + ": " + e);
            }
        }, name);
        thread.start();
        threads.add(thread);
    }
}
