package interop;

import java.io.FileOutputStream;
import java.io.OutputStream;
import java.nio.file.Path;
import org.apache.hadoop.fs.CommonConfigurationKeysPublic;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.ResourceScheduler;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler;

/** A resource manager and two node managers in one process, until standard input ends; "ready" says that they run. */
final class MiniYarn {
    private static final int NODES = 2;

    public static void main(String[] arguments) throws Exception {
        Path clients = Path.of(arguments[0]);
        YarnConfiguration settings = new YarnConfiguration();
        settings.set(CommonConfigurationKeysPublic.FS_DEFAULT_NAME_KEY, "file:///");
        settings.setClass(YarnConfiguration.RM_SCHEDULER, FifoScheduler.class, ResourceScheduler.class);
        settings.setInt(YarnConfiguration.RM_SCHEDULER_MINIMUM_ALLOCATION_MB, 128);
        settings.setBoolean(YarnConfiguration.NM_VMEM_CHECK_ENABLED, false);
        settings.setFloat(YarnConfiguration.NM_MAX_PER_DISK_UTILIZATION_PERCENTAGE, 99.9f);
        MiniYARNCluster cluster = new MiniYARNCluster("nodes", NODES, 1, 1);
        cluster.init(settings);
        cluster.start();
        if (!cluster.waitForNodeManagersToConnect(60_000)) {
            throw new IllegalStateException("the nodes have not registered");
        }
        for (String name : new String[] {"core-site.xml", "yarn-site.xml"}) {
            try (OutputStream file = new FileOutputStream(clients.resolve(name).toFile())) {
                cluster.getConfig().writeXml(file);
            }
        }
        System.out.println("ready");
        while (System.in.read() >= 0) {
            continue;
        }
        Runtime.getRuntime().halt(0); // to stop in order takes ten seconds, and containers end with their driver
    }
}
