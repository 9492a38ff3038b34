import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Topics made as mqadmin makes them: asked of a broker's master, then waited for in the route. */
final class Topics {
    private static final long ROUTE_DEADLINE_MS = 30_000;

    private Topics() {
    }

    static void create(String namesrv, String[] brokers, int queues, String... topics) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(namesrv);
        admin.setInstanceName("admin-" + System.nanoTime());
        admin.start();
        try {
            for (String topic : topics) {
                for (String broker : brokers) {
                    admin.createAndUpdateTopicConfig(broker, new TopicConfig(topic, queues, queues, 6));
                }
                awaitRoute(admin, topic, brokers.length);
            }
        } finally {
            admin.shutdown();
        }
    }

    /** A producer that starts before the route is there would be given the default topic's queues. */
    private static void awaitRoute(DefaultMQAdminExt admin, String topic, int brokers) throws Exception {
        long end = System.currentTimeMillis() + ROUTE_DEADLINE_MS;
        while (true) {
            try {
                if (admin.examineTopicRouteInfo(topic).getQueueDatas().size() == brokers) {
                    return;
                }
            } catch (org.apache.rocketmq.client.exception.MQClientException e) {
                if (System.currentTimeMillis() > end) {
                    throw e;
                }
            }
            if (System.currentTimeMillis() > end) {
                throw new IllegalStateException("no route of " + topic + " with " + brokers + " brokers");
            }
            Thread.sleep(100);
        }
    }
}
