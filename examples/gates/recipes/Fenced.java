import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;

/** Writes the positions of a scene under the token of a lease: Fenced JDBC_URL SCENE TOKEN POSITIONS */
public class Fenced {
    /** Another holder has written under a newer token: stop, and do not retry. */
    static final String STALE = "SH412";

    static void write(Connection connection, String scene, long token, String positions) throws SQLException {
        connection.setAutoCommit(false);
        // SET takes no parameters; set_config does. True: only for this transaction.
        try (var show = connection.prepareStatement("SELECT set_config('solehold.token', ?, true)");
                var update = connection.prepareStatement("UPDATE app.tracks SET positions = ? WHERE scene_id = ?")) {
            show.setString(1, Long.toString(token));
            show.execute();
            update.setString(1, positions);
            update.setString(2, scene);
            update.executeUpdate();
            connection.commit();
        } catch (SQLException error) {
            connection.rollback();
            throw error;
        }
    }

    public static void main(String[] args) throws SQLException {
        try (var connection = DriverManager.getConnection(args[0])) {
            write(connection, args[1], Long.parseLong(args[2]), args[3]);
            System.out.println("written");
        } catch (SQLException error) {
            if (!STALE.equals(error.getSQLState())) {
                throw error;
            }
            System.out.println("stale: " + error.getMessage().lines().findFirst().orElse(""));
            System.exit(3);
        }
    }
}
