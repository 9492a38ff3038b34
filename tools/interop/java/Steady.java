import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;

/**
 * Steady NAMESRV TOPIC PRODUCERS PAUSE_MS BROKER ...: producers that send until standard input ends.
 *
 * TOPIC is made on every BROKER (host:port). Each producer sends one message after the other, each
 * with the client's own retries, so that a broker's end shows as at most a slower send.
 */
public final class Steady {
    private static volatile boolean going = true;

    private Steady() {
    }

    public static void main(String[] args) throws Exception {
        Topics.create(args[0], List.of(args).subList(4, args.length).toArray(new String[0]), 4, args[1]);
        List<Thread> threads = new ArrayList<>();
        for (int n = 0; n < Integer.parseInt(args[2]); n++) {
            int number = n;
            threads.add(new Thread(() -> send(args[0], args[1], number, Long.parseLong(args[3])), "producer-" + n));
        }
        threads.forEach(Thread::start);
        Report.note("ready", "producing");
        while (System.in.read() >= 0) {
            // Only the end of input matters: it also comes when the runner has died.
        }
        going = false;
        for (Thread thread : threads) {
            thread.join();
        }
        Report.note("done", "produced");
        System.exit(0);
    }

    private static void send(String namesrv, String topic, int number, long pauseMs) {
        DefaultMQProducer producer = new DefaultMQProducer("steady-" + number);
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName("steady-" + number);
        producer.setPollNameServerInterval(2_000);
        producer.setHeartbeatBrokerInterval(2_000);
        producer.setSendMsgTimeout(10_000);
        producer.setRetryTimesWhenSendFailed(5);
        try {
            producer.start();
            for (int n = 0; going; n++) {
                one(producer, topic, number + "-" + n);
                Thread.sleep(pauseMs);
            }
        } catch (Exception e) {
            Report.note("error", "producer " + number + ": " + e);
        }
        producer.shutdown();
    }

    private static void one(DefaultMQProducer producer, String topic, String id) {
        Message message = new Message(topic, "steady", id, id.getBytes(StandardCharsets.UTF_8));
        message.putUserProperty(Report.ID, id);
        try {
            Report.sent("steady", message, producer.send(message));
        } catch (Exception e) {
            Report.failed("steady", message, e);
        }
    }
}
