import java.io.File;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/** An HDFS below a directory, on a port; one that is there is kept. It ends with its standard input. */
public final class MiniHdfs {
    private MiniHdfs() {
    }

    public static void main(final String[] args) throws Exception {
        final File directory = new File(args[0]);
        final Configuration conf = new Configuration();
        conf.set(MiniDFSCluster.HDFS_MINIDFS_BASEDIR, directory.getPath());
        conf.setBoolean("dfs.permissions.enabled", true);
        conf.setInt("dfs.namenode.safemode.extension", 0);
        conf.setInt("dfs.namenode.safemode.min.datanodes", 0);
        final boolean isNew = !new File(directory, "name-0-1").exists();
        final MiniDFSCluster cluster = new MiniDFSCluster.Builder(conf)
            .nameNodePort(Integer.parseInt(args[1])).numDataNodes(1).format(isNew).build();
        cluster.waitActive();
        System.out.println("serving");
        while (System.in.read() >= 0) {
            continue;
        }
        Runtime.getRuntime().halt(0);  // shutdown() would delete what is there
    }
}
