package interop;

import com.alibaba.fastjson2.JSONObject;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.remoting.RPCHook;

/** What every client in this JVM is given. */
final class Clients {
    /**
     * A consumer drops the heartbeat with its new subscription version when it collides with the periodic one; the
     * broker then refuses its pulls (SUBSCRIPTION_NOT_LATEST) until the next, by default for 30 seconds.
     */
    static final int HEARTBEAT_MS = 2_000;

    private static final AtomicInteger LAST = new AtomicInteger();

    private Clients() {
    }

    /** Signs with the user of the arguments; null without one. */
    static RPCHook hook(JSONObject arguments) {
        String accessKey = arguments.getString("accessKey");
        return accessKey == null
            ? null
            : new AclClientRPCHook(new SessionCredentials(accessKey, arguments.getString("secretKey")));
    }

    /** An instance name, so that no two clients share connections or a client id by chance. */
    static String unique(String prefix) {
        return prefix + "-" + ProcessHandle.current().pid() + "-" + LAST.incrementAndGet();
    }
}
