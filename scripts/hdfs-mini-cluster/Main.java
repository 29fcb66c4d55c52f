import java.io.BufferedReader;
import java.io.DataOutputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.security.PrivilegedExceptionAction;
import java.util.ArrayDeque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.LocatedFileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.hadoop.fs.SafeModeAction;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.hdfs.DistributedFileSystem;
import org.apache.hadoop.hdfs.HdfsConfiguration;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.hdfs.MiniDFSCluster.DataNodeProperties;
import org.apache.hadoop.hdfs.protocol.DatanodeID;
import org.apache.hadoop.security.Credentials;
import org.apache.hadoop.security.UserGroupInformation;

/**
 * A whole HDFS in one process, on free ports of the loopback address: a namenode and some datanodes, told by lines what to do.
 *
 * Arguments: a folder for its data, the number of datanodes, and settings (name=value). It says "ready PORT", then answers each line of its input with a line that
 * begins with "ok" or "error". It ends with its input.
 */
class Main {
    private final MiniDFSCluster cluster;
    private final Map<Integer, DataNodeProperties> stopped = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        // Hadoop says much on standard output; only answers go there.
        var answers = System.out;
        System.setOut(System.err);
        System.setProperty("hadoop.home.dir", arguments[0]);
        Configuration settings = new HdfsConfiguration();
        settings.set(MiniDFSCluster.HDFS_MINIDFS_BASEDIR, arguments[0]);
        settings.set("dfs.namenode.delegation.token.always-use", "true");
        settings.set("dfs.namenode.fs-limits.min-block-size", "1024");
        // A datanode that is stopped without the namenode being told is known to be gone after eleven seconds, not after ten minutes.
        settings.set("dfs.heartbeat.interval", "1");
        settings.set("dfs.namenode.heartbeat.recheck-interval", "500");
        for (int at = 2; at < arguments.length; at++) {
            String[] setting = arguments[at].split("=", 2);
            settings.set(setting[0], setting[1]);
        }
        int datanodes = Integer.parseInt(arguments[1]);
        MiniDFSCluster cluster = new MiniDFSCluster.Builder(settings).numDataNodes(datanodes).build();
        cluster.waitActive();
        cluster.getFileSystem().setPermission(new Path("/"), new FsPermission("777"));
        Main main = new Main(cluster);
        answers.println("ready " + cluster.getNameNodePort());
        var lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String answer;
            try {
                answer = "ok " + main.execute(new ArrayDeque<>(List.of(line.split(" "))));
            } catch (Exception failure) {
                answer = "error " + failure.toString().replace('\n', ' ');
            }
            answers.println(answer);
        }
        // Its threads and its files end with the process and the folder.
        Runtime.getRuntime().halt(0);
    }

    Main(MiniDFSCluster cluster) {
        this.cluster = cluster;
    }

    private String execute(ArrayDeque<String> words) throws Exception {
        switch (words.pop()) {
            case "stop-datanode":
                int number = Integer.parseInt(words.pop());
                DatanodeID id = cluster.getDataNodes().get(number).getDatanodeId();
                stopped.put(number, cluster.stopDataNode(cluster.getDataNodes().get(number).getDisplayName()));
                if (words.isEmpty()) {
                    cluster.setDataNodeDead(id);
                }
                return "";
            case "start-datanodes":
                for (DataNodeProperties datanode : stopped.values()) {
                    cluster.restartDataNode(datanode, true);
                }
                stopped.clear();
                cluster.waitActive();
                return "";
            case "stop-namenode":
                cluster.shutdownNameNodes();
                return "";
            case "start-namenode":
                cluster.restartNameNode(true);
                return "";
            case "safe-mode":
                boolean isOn = words.pop().equals("on");
                files().setSafeMode(isOn ? SafeModeAction.ENTER : SafeModeAction.LEAVE);
                return "";
            case "protect":
                files().setPermission(new Path(words.pop()), new FsPermission("700"));
                return "";
            case "quota":
                files().setQuota(new Path(words.peek()), Long.MAX_VALUE, Long.parseLong(words.pollLast()));
                return "";
            case "owner":
                return files().getFileStatus(new Path(words.pop())).getOwner();
            case "list":
                StringBuilder found = new StringBuilder();
                RemoteIterator<LocatedFileStatus> all = files().listFiles(new Path(words.pop()), true);
                while (all.hasNext()) {
                    FileStatus file = all.next();
                    found.append(file.getPath().toUri().getPath()).append('=').append(file.getLen()).append(' ');
                }
                return found.toString().trim();
            case "get":
                for (FileStatus file : files().listStatus(new Path(words.pop()))) {
                    files().copyToLocalFile(false, file.getPath(), new Path("file://" + words.peek()), true);
                }
                return "";
            case "token":
                Credentials credentials = new Credentials();
                UserGroupInformation user = UserGroupInformation.createRemoteUser(words.pop());
                String path = words.pop();
                user.doAs((PrivilegedExceptionAction<Object>) () -> cluster.getFileSystem(0).addDelegationTokens("nobody", credentials));
                try (DataOutputStream out = new DataOutputStream(new FileOutputStream(path))) {
                    credentials.writeTokenStorageToStream(out);
                }
                return "" + credentials.numberOfTokens();
            default:
                throw new IllegalArgumentException("no such command");
        }
    }

    private DistributedFileSystem files() throws IOException {
        return cluster.getFileSystem();
    }
}
