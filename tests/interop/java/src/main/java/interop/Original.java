package interop;

import java.util.concurrent.LinkedBlockingQueue;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.BrokerStartup;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.namesrv.NamesrvStartup;
import org.apache.rocketmq.remoting.RemotingClient;

/**
 * The original name server and broker in one JVM, because a JVM is dear to start: each is started as its own main class
 * starts it. Arguments: the file of the name server, the file of the broker.
 *
 * <p>A signal stops the broker in order; the name server, which keeps nothing, ends with the JVM.
 */
public final class Original {
    private static final int LOOK_AGAIN_MS = 50;
    private static final int LOOKS = 200;

    private Original() {
    }

    public static void main(String[] files) throws Exception {
        NamesrvStartup.parseCommandlineAndConfigFile(new String[] {"-c", files[0]});
        NamesrvController nameServer = NamesrvStartup.createNamesrvController();
        if (!nameServer.initialize()) {
            throw new IllegalStateException("the name server does not start");
        }
        nameServer.start();
        // It only helps the hook of the broker, at the same time.
        Runtime.getRuntime().addShutdownHook(new Thread(Original::hurry));
        BrokerController broker = BrokerStartup.createBrokerController(new String[] {"-c", files[1]});
        register(BrokerStartup.start(broker));
    }

    /**
     * A broker registers when it starts, with the name servers that another thread of it has found until then: mostly
     * none. It does so again after ten seconds.
     */
    private static void register(BrokerController broker) throws InterruptedException {
        RemotingClient client = broker.getBrokerOuterAPI().getRemotingClient();
        for (int look = 0; look < LOOKS && client.getAvailableNameSrvList().isEmpty(); look++) {
            Thread.sleep(LOOK_AGAIN_MS);
        }
        if (!broker.isIsolated()) {
            broker.registerBrokerAll(true, false, true);
        }
    }

    private static void hurry() {
        Thread hurrying = new Thread(() -> {
            while (true) {
                Thread.getAllStackTraces().forEach((thread, stack) -> {
                    if (waitsForNothing(stack)) {
                        thread.interrupt();
                    }
                });
                try {
                    Thread.sleep(LOOK_AGAIN_MS);
                } catch (InterruptedException end) {
                    return;
                }
            }
        });
        hurrying.setDaemon(true);
        hurrying.start();
    }

    /**
     * Whether a thread of a broker that stops only lets time pass, of which a stop has eleven seconds: three threads
     * look each three seconds whether they should end, the store and the buffer of POP rest while nobody can ask for
     * anything any more. All of them go on when they are interrupted.
     */
    private static boolean waitsForNothing(StackTraceElement[] stack) {
        for (int depth = 1; depth < stack.length; depth++) {
            String place = stack[depth].getClassName() + "#" + stack[depth].getMethodName();
            boolean sleeps = stack[depth - 1].getMethodName().equals("sleep");
            boolean polls = stack[depth - 1].getClassName().equals(LinkedBlockingQueue.class.getName());
            if (sleeps && place.equals("org.apache.rocketmq.store.DefaultMessageStore#shutdown")
                || sleeps && place.equals("org.apache.rocketmq.broker.processor.PopBufferMergeService#run")
                || polls && place.endsWith("NettyRemotingAbstract$NettyEventExecutor#run")) {
                return true;
            }
        }
        return false;
    }
}
